//! Tests of guests on real kernels: their output arrives, and the report has their exit statuses.

use std::time::Duration;

use bedplate_vm::{Acceleration, Error, File, Job, Kernel, Machine, Report, Series};

fn machine(series: Series) -> Machine {
    Machine::new(Kernel::get(series).unwrap()).memory(1 << 30)
}

fn sh(script: &str) -> Job {
    Job::new(["sh", "-c", script])
}

fn run(machine: &Machine, jobs: &[Job]) -> (Result<Report, Error>, String, String) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let report = machine.run(jobs, &mut out, &mut err);
    (report, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

#[test]
fn output_and_statuses_of_a_guest_arrive() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("deep/taken along");
    std::fs::create_dir(folder.path().join("deep")).unwrap();
    std::fs::write(&file, "content").unwrap();
    for series in Series::ALL {
        let machine = machine(series)
            .env("EVERYWHERE", "it's")
            .file(File { host: folder.path().into(), guest: "/data".into() });
        let jobs = [
            sh("echo out; echo err >&2; exit 3").title("a title"),
            Job::new(["printf", "%s|", "a b", "'", "$HOME", ""]),
            sh("kill -SEGV $$"),
            sh("echo $EVERYWHERE $ONCE; cat '/data/deep/taken along'; uname -r; ls /dev/kvm; nproc")
                .env("ONCE", "1"),
            // A program of the host, with its libraries.
            Job::new(["seq", "150000"]),
        ];
        let (report, out, err) = run(&machine, &jobs);
        let report = report.unwrap();
        assert_eq!(report.statuses, [3, 0, 139, 0, 0], "{out}{err}");
        assert!(!report.succeeded());
        assert_eq!(report.complaints, [""; 0]);
        assert_eq!(err, "err\nSegmentation fault\n");
        let numbers: String = (1..=150_000).map(|n| format!("{n}\n")).collect();
        let rest = out.strip_suffix(&numbers).expect("all numbers");
        let expected = "a title\nout\na b|'|$HOME||it's 1\ncontent";
        let rest = rest.strip_prefix(expected).unwrap_or_else(|| panic!("{rest}"));
        let lines: Vec<&str> = rest.lines().collect();
        let release = Kernel::get(series).unwrap().version();
        assert_eq!(lines[0], release);
        assert!(
            series == Series::Backports || release.starts_with(&format!("{}.", series.name())),
            "{release}"
        );
        assert_eq!(lines[1..], ["/dev/kvm", "2"]);
        assert!(report.log.contains("Linux version"));
    }
}

/// This applies to guests in software that have several processors.
#[test]
fn jobs_are_kept_off_the_first_processor() {
    let script =
        "nproc; grep -c ^processor /proc/cpuinfo; sed -n 's/^Cpus_allowed_list:.//p' /proc/self/status";
    for (cpus, in_software) in [(1, "1\n1\n0\n"), (3, "3\n4\n1-3\n")] {
        let machine = machine(Series::V6_12).cpus(cpus);
        let (report, out, err) = run(&machine, &[sh(script)]);
        assert!(report.unwrap().succeeded(), "{err}");
        match machine.acceleration() {
            Acceleration::Software => assert_eq!(out, in_software),
            Acceleration::Hardware => assert!(out.starts_with(&format!("{cpus}\n{cpus}\n0")), "{out}"),
        }
    }
}

#[test]
fn a_guest_that_hangs_is_ended() {
    let limit = Duration::from_secs(15);
    let script = "echo before; echo on the console > /dev/console; sleep 1000";
    let (report, out, _) = run(&machine(Series::V6_1).limit(limit), &[sh(script)]);
    let error = report.unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    assert!(error.console().unwrap().contains("on the console"));
    assert_eq!(out, "before\n");
}

#[test]
fn kernels_that_complain_are_noticed() {
    let (report, _, _) = run(&machine(Series::V6_1), &[sh("echo 'BUG: not really' > /dev/kmsg")]);
    let report = report.unwrap();
    assert_eq!(report.statuses, [0]);
    assert!(report.complaints[0].contains("BUG: not really") && !report.succeeded());
    let (report, _, _) =
        run(&machine(Series::V6_1), &[sh("true"), sh("echo c > /proc/sysrq-trigger"), sh("true")]);
    let error = report.unwrap_err();
    assert!(matches!(error, Error::Died { .. }), "{error}");
    assert!(error.to_string().contains("sysrq triggered crash"), "{error}");
    assert!(error.console().unwrap().contains("Kernel panic"), "{error:?}");
}

#[test]
fn instructions_are_counted() {
    // The same work twice takes the same time, except for the kernel's own work.
    let script = "nproc; for i in 1 2; do a=$(cut -d' ' -f1 /proc/uptime); n=0; \
                  while [ $n -lt 100000 ]; do n=$((n+1)); done; b=$(cut -d' ' -f1 /proc/uptime); \
                  echo $a $b; done";
    let (report, out, _) = run(&machine(Series::V6_1).count_instructions(), &[sh(script)]);
    assert!(report.unwrap().succeeded());
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], "1");
    let took = |line: &str| {
        let (a, b) = line.split_once(' ').unwrap();
        b.parse::<f64>().unwrap() - a.parse::<f64>().unwrap()
    };
    let (first, second) = (took(lines[1]), took(lines[2]));
    // The resolution of the kernel's value is hundredths of a second.
    assert!((first - second).abs() <= 0.021 && first > 0.0, "{first} {second}");
}

#[test]
fn a_scratch_disk_has_direct_access() {
    let script = "dd if=/dev/zero of=/disk/x bs=4096 count=4 oflag=direct && \
                  dd if=/disk/x of=/dev/null bs=4096 count=4 iflag=direct && grep /disk /proc/mounts";
    for series in Series::ALL {
        let (report, out, err) = run(&machine(series).disk(16 << 20), &[sh(script)]);
        assert!(report.unwrap().succeeded(), "{out}{err}");
        assert!(out.starts_with("/dev/loop0 /disk ext4 rw"), "{out}");
        let (report, ..) = run(&machine(series), &[sh("[ -e /disk ]")]);
        assert_eq!(report.unwrap().statuses, [1], "only on request");
    }
}

/// A guest that dies before its first job also counts as lost.
#[test]
fn a_guest_that_dies_while_it_boots_has_died() {
    let (report, ..) = run(&machine(Series::V6_1).append("rdinit=/no/such init=/no/such"), &[sh("true")]);
    let error = report.unwrap_err();
    assert!(matches!(error, Error::Died { .. }), "{error}");
    assert!(error.console().is_some_and(|console| console.contains("panic")), "{error}");
}

#[test]
fn an_nvme_device_is_there_on_request() {
    let script = "echo content | dd of=/dev/nvme0n1 conv=notrunc,sync bs=4096 oflag=direct && \
                  dd if=/dev/nvme0n1 bs=4096 count=1 iflag=direct | head -n1 && \
                  cat /sys/block/nvme0n1/size && ls -d /dev/ng0n1";
    for series in Series::ALL {
        let (report, out, err) = run(&machine(series).nvme(16 << 20), &[sh(script)]);
        assert!(report.unwrap().succeeded(), "{out}{err}");
        assert_eq!(out, "content\n32768\n/dev/ng0n1\n");
        let (report, ..) = run(&machine(series), &[sh("[ -e /dev/nvme0n1 ]")]);
        assert_eq!(report.unwrap().statuses, [1], "only on request");
    }
}

#[test]
fn missing_files_are_reported() {
    let (report, ..) = run(&machine(Series::V6_1), &[Job::new(["/no/such/program"])]);
    assert!(matches!(report, Err(Error::NotFound { .. })));
    let (report, ..) = run(&machine(Series::V6_1), &[Job::new(["no-such-program"])]);
    assert_eq!(report.unwrap().statuses, [127]);
    assert!(matches!(Kernel::from_image("/no/such/kernel".as_ref()), Err(Error::NotFound { .. })));
    let file = File { host: "/no/such/file".into(), guest: "/x".into() };
    let (report, ..) = run(&machine(Series::V6_1).file(file), &[sh("true")]);
    assert!(matches!(report, Err(Error::NotFound { .. })));
    let not_a_kernel = Kernel::from_image("/etc/hostname".as_ref()).unwrap();
    let (report, ..) = run(&Machine::new(not_a_kernel).limit(Duration::from_secs(20)), &[sh("true")]);
    let error = report.unwrap_err();
    assert!(matches!(error, Error::Qemu(_) | Error::Died { .. }), "{error}");
}

#[test]
fn a_missing_library_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("x.c");
    std::fs::write(&source, "int there(void) { return 0; }\n").unwrap();
    let cc = |args: &[&str]| {
        let status = std::process::Command::new("cc").current_dir(folder.path()).args(args).status().unwrap();
        assert!(status.success());
    };
    cc(&["-shared", "-fPIC", "-o", "libthere.so", "x.c"]);
    std::fs::write(&source, "int there(void); int main(void) { return there(); }\n").unwrap();
    cc(&["-o", "program", "x.c", "-L.", "-lthere"]);
    let program = folder.path().join("program");
    let job = Job::new([program.to_str().unwrap()]);
    let (report, ..) = run(&machine(Series::V6_1), &[job]);
    let error = report.unwrap_err().to_string();
    assert!(error.contains("libthere.so"), "{error}");
}

#[test]
fn a_dead_guests_error_has_the_warnings_of_its_console() {
    let script = "echo '<4>a warning before' > /dev/kmsg; echo c > /proc/sysrq-trigger";
    let (report, ..) = run(&machine(Series::V6_1), &[sh(script)]);
    let error = report.unwrap_err();
    assert!(error.console().unwrap().contains("a warning before"), "{error:?}");
}
