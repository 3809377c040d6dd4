//! QEMU: the processor on which the guest runs, and starting QEMU.

use std::fs;
use std::io::{PipeReader, pipe};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use command_fds::{CommandFdExt, FdMapping};

use super::clock;
use crate::{Error, Kernel, Result};

/// The method by which the guest's instructions are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acceleration {
    /// The host's processor executes them with KVM. Its virtualization is available to the guest.
    Hardware,
    /// QEMU executes them. It emulates an AMD processor with AMD-V.
    Software,
}

impl Acceleration {
    /// The best method of this machine. `/dev/kvm` is not used if VT-x or AMD-V is missing or cannot be nested,
    /// because the guest needs KVM itself.
    pub fn detect() -> Acceleration {
        let nests = |module: &str| {
            fs::read_to_string(format!("/sys/module/{module}/parameters/nested"))
                .is_ok_and(|value| matches!(value.trim(), "1" | "Y"))
        };
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let flags = cpuinfo.lines().find_map(|line| line.strip_prefix("flags")).unwrap_or_default();
        let has = |flag: &str| flags.split_whitespace().any(|f| f == flag);
        let real = has("svm") && nests("kvm_amd") || has("vmx") && nests("kvm_intel");
        let usable = fs::File::options().read(true).write(true).open("/dev/kvm").is_ok();
        if real && usable { Acceleration::Hardware } else { Acceleration::Software }
    }
}

/// The machine's settings for QEMU.
pub(super) struct Settings<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) initramfs: &'a Path,
    /// The file behind the NVMe device, if there is one.
    pub(super) nvme: Option<&'a Path>,
    pub(super) acceleration: Acceleration,
    pub(super) cpus: u32,
    /// Whether the guest has one more processor. It is the first one, and boots alone.
    pub(super) spare: bool,
    pub(super) memory: u64,
    pub(super) count_instructions: bool,
    pub(super) append: &'a str,
}

/// A running QEMU, with the output of the guest's four serial ports. It is killed when dropped.
pub(super) struct Qemu {
    pub(super) child: Child,
    pub(super) ports: [PipeReader; 4],
}

impl Qemu {
    pub(super) fn start(settings: &Settings<'_>) -> Result<Qemu> {
        let mut command = Command::new("qemu-system-x86_64");
        let (accelerator, processor) = match settings.acceleration {
            Acceleration::Hardware => ("kvm", "host"),
            Acceleration::Software => ("tcg", "EPYC,+svm"),
        };
        command.args(["-machine", "q35", "-accel", accelerator, "-cpu", processor]);
        command.args(["-display", "none", "-monitor", "none", "-vga", "none", "-nic", "none", "-no-reboot"]);
        command.args(["-nodefaults", "-no-user-config"]);
        command.args(["-smp", &settings.cpus.saturating_add(settings.spare.into()).to_string()]);
        command.args(["-m", &format!("{}M", settings.memory >> 20)]);
        if settings.count_instructions {
            command.args(["-icount", "shift=0,sleep=off"]);
        }
        if let Some(file) = settings.nvme {
            command.args([
                "-drive",
                &format!("file={},format=raw,if=none,id=nvme,cache=unsafe", file.display()),
            ]);
            command.args(["-device", "nvme,serial=bedplate,drive=nvme"]);
        }
        command.arg("-kernel").arg(settings.kernel.image()).arg("-initrd").arg(settings.initramfs);
        // Without mitigations, emulation is twice as fast. A panic ends QEMU. The console gets warnings and more
        // severe messages, because nothing else remains of them if the guest dies.
        let append = "console=ttyS0 loglevel=5 log_buf_len=4M panic=-1 mitigations=off tsc=reliable \
                      8250.nr_uarts=4 net.ifnames=0";
        // QEMU up to 8.0 may translate code while another processor patches it (docs/vm.md). A kernel patches much
        // code while it boots. On a single processor it would also remove its lock prefixes.
        let alone = if settings.spare { "maxcpus=1 noreplace-smp" } else { "" };
        let clock = match settings.acceleration {
            Acceleration::Software => {
                let ticks = settings.kernel.ticks().filter(|_| settings.spare);
                clock::arguments(settings.count_instructions, ticks)
            }
            Acceleration::Hardware => String::new(),
        };
        command.args(["-append", &format!("{append} {alone} {clock} {}", settings.append)]);
        let mut mappings = Vec::new();
        let mut ports = Vec::new();
        for port in 0..4 {
            let (reader, writer) = pipe().map_err(Error::io("create a pipe"))?;
            let child_fd = 10 + port;
            command.args(["-chardev", &format!("file,id=port{port},path=/dev/fd/{child_fd}")]);
            command.args(["-serial", &format!("chardev:port{port}")]);
            mappings.push(FdMapping { parent_fd: OwnedFd::from(writer), child_fd });
            ports.push(reader);
        }
        command.fd_mappings(mappings).map_err(|e| Error::Qemu(e.to_string()))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        // SAFETY: the closure makes one system call, which is allowed between fork and exec.
        unsafe { command.pre_exec(die_with_parent) };
        let child = command.spawn().map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => {
                Error::Missing { program: "qemu-system-x86_64", package: "qemu-system-x86" }
            }
            _ => Error::Io { what: "start qemu-system-x86_64".into(), source },
        })?;
        // Only the child has the writing ends afterwards: `command` and its mappings are dropped here.
        let ports = ports.try_into().unwrap_or_else(|_| unreachable!("four ports"));
        Ok(Qemu { child, ports })
    }
}

/// Makes the kernel kill QEMU when the harness dies.
fn die_with_parent() -> std::io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    Ok(())
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
