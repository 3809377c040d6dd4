# Runs one file of Redis's test suite and reports every result on a line of its own.
#
#   cd SUITE && tclsh driver.tcl UNIT ENVIRONMENT OPTION...      (the options of Redis's runtest)
#
# ENVIRONMENT is a list of NAME=VALUE, which the servers get that the suite starts. The servers' clients do not get it.
#
# A line is a status (testing, ok, err, skip, ignore, done), a tab, and the text in hexadecimal UTF-8. Lines of another form
# are what the suite prints. The suite's files are used as they are; this script only changes these procedures while the
# suite defines them:
# - send_data_packet reports results to the suite's controlling process, which this script does without. With a server that
#   the suite did not start, it also opens a new connection after a failure, because a test that ends in the middle of MULTI
#   would make those after it fail.
# - test_client_main waits for orders of that process; here it runs the one file.
# - spawn_server starts a server by env; here env also sets ENVIRONMENT.
# - run_external_server_test sets the time limit on scripts again, which some tests leave at a few milliseconds. When it sets a
#   password, it needs a new connection, because one that was opened before stays authenticated.
# - tags_acceptable runs the tests of AUTH, and those of users that need no options of redis-server, also against a server that the suite
#   did not start. They work.
set unit [lindex $argv 0]
set server_environment [lindex $argv 1]
# A test expects that the suite's controlling process listens on its port.
set listener [socket -server {apply {args {}}} -myaddr 127.0.0.1 0]
set argv [list --client [lindex [fconfigure $listener -sockname] 2] {*}[lrange $argv 2 end]]
set test_server_fd {}

rename proc define_procedure
define_procedure proc {name parameters body} {
    switch -- $name {
        send_data_packet {
            set parameters {fd status text {elapsed 0}}
            set body {
                # What the suite printed before may not have ended its line.
                puts "\n$status\t[binary encode hex [encoding convertto utf-8 $text]]"
                flush stdout
                if {$status eq "err" && $::external && [llength $::servers] > 0} { catch {reconnect} }
            }
        }
        test_client_main {
            set body { execute_test_file $::unit }
        }
        spawn_server {
            set body [string map {
                "/usr/bin/env ASAN_OPTIONS" "/usr/bin/env {*}$::server_environment ASAN_OPTIONS"
            } $body]
        }
        run_external_server_test {
            set body [string map {
                "r function flush" "r function flush; r config set busy-reply-threshold 5000"
                "# If we enable appendonly" "if {$param eq {requirepass}} { reconnect }
        # If we enable appendonly"
            } $body]
        }
        tags_acceptable {
            set body [string map {{"external:skip"] >= 0} {"external:skip"] >= 0 && [lsearch $tags "auth"] < 0 &&
                !([lsearch $tags "acl"] >= 0 && [uplevel {expr {![info exists overrides] || $overrides eq {}}}])}} $body]
        }
    }
    uplevel 1 [list define_procedure $name $parameters $body]
}
source tests/test_helper.tcl
