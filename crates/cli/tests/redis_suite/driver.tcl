# Runs one file of Redis's test suite against a running server and reports every result on a line of its own.
#
#   cd SUITE && tclsh driver.tcl UNIT OPTION...      (the options of Redis's runtest)
#
# A line is a status (testing, ok, err, skip, ignore, done), a tab, and the text in hexadecimal UTF-8. The suite's files are
# used as they are; this script only changes four procedures while the suite defines them:
# - send_data_packet reports results to the suite's controlling process, which this script does without. After a failure
#   it also opens a new connection, because a test that ends in the middle of MULTI would make those after it fail.
# - test_client_main waits for orders of that process; here it runs the one file.
# - run_external_server_test calls FUNCTION FLUSH, which a server without functions does not have. When it sets a password,
#   it needs a new connection, because one that was opened before stays authenticated.
# - tags_acceptable does not run the tests of AUTH against a server that the suite did not start. They work.
set unit [lindex $argv 0]
set argv [list --client 0 {*}[lrange $argv 1 end]]
set test_server_fd {}

rename proc define_procedure
define_procedure proc {name parameters body} {
    switch -- $name {
        send_data_packet {
            set parameters {fd status text {elapsed 0}}
            set body {
                puts "$status\t[binary encode hex [encoding convertto utf-8 $text]]"
                flush stdout
                if {$status eq "err" && [llength $::servers] > 0} { catch {reconnect} }
            }
        }
        test_client_main {
            set body { execute_test_file $::unit }
        }
        run_external_server_test {
            set body [string map {
                "r function flush" ""
                "# If we enable appendonly" "if {$param eq {requirepass}} { reconnect }
        # If we enable appendonly"
            } $body]
        }
        tags_acceptable {
            set body [string map {{"external:skip"] >= 0} {"external:skip"] >= 0 && [lsearch $tags "auth"] < 0}} $body]
        }
    }
    uplevel 1 [list define_procedure $name $parameters $body]
}
source tests/test_helper.tcl
