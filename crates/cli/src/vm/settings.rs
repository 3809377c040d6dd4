//! Options that all guests have.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bedplate_vm::{File, Kernel, Machine, Series};

use crate::units::{parse_size, parse_time};

#[derive(clap::Args)]
pub struct Settings {
    /// Linux series from Debian's archive, 6.1, 6.12 or backports; or the path of a kernel image. A series is fetched once, and kept
    /// (`bedplate vm fetch`).
    #[arg(long, value_name = "SERIES|FILE", default_value = "6.1")]
    kernel: String,
    /// Processors for the command. In software the guest has one more.
    #[arg(long, value_name = "N", default_value_t = 2)]
    cpus: u32,
    /// Memory, which also holds the files of the command.
    #[arg(long, value_name = "SIZE", default_value = "2G", value_parser = parse_size)]
    memory: u64,
    /// Kill the guest when the command takes longer, and show its console. Stretched on a machine that boots slowly.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_time)]
    timeout: Duration,
    /// Let the guest's clock count instructions: one processor, the same figures in every run.
    #[arg(long, conflicts_with = "cpus")]
    icount: bool,
    /// Further arguments of the kernel.
    #[arg(long, value_name = "ARGUMENTS", default_value = "", allow_hyphen_values = true)]
    append: String,
    /// A scratch disk of this size at /disk: ext4 on a loop device in the guest's memory.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    disk: Option<u64>,
    /// An NVMe device of this size, all zero: /dev/nvme0n1, and /dev/ng0n1 for its own commands.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    nvme: Option<u64>,
    /// A further kernel module to load.
    #[arg(long = "module", value_name = "NAME")]
    modules: Vec<String>,
    /// A file to take along, under the same path or another one.
    #[arg(long = "file", value_name = "FILE[:AS]", value_parser = parse_file)]
    files: Vec<File>,
}

impl Settings {
    /// The machine.
    pub fn machine(&self) -> bedplate_vm::Result<Machine> {
        let mut machine =
            Machine::new(kernel(&self.kernel)?).cpus(self.cpus).memory(self.memory).limit(self.timeout);
        if self.icount {
            machine = machine.count_instructions();
        }
        if let Some(bytes) = self.disk {
            machine = machine.disk(bytes);
        }
        if let Some(bytes) = self.nvme {
            machine = machine.nvme(bytes);
        }
        machine = machine.append(&self.append);
        machine = self.modules.iter().fold(machine, |machine, name| machine.module(name));
        machine = self.files.iter().fold(machine, |machine, file| machine.file(file.clone()));
        Ok(passed_on().fold(machine, |machine, (name, value)| machine.env(name, value)))
    }
}

/// Variables of this process's environment that the guest's programs get.
fn passed_on() -> impl Iterator<Item = (String, String)> {
    let wanted = |name: &str| {
        ["BEDPLATE_", "RUST_", "PROPTEST_", "LOOM_"].iter().any(|prefix| name.starts_with(prefix))
            || name == "NO_COLOR"
    };
    std::env::vars().filter(move |(name, _)| wanted(name) && name != bedplate_vm::MARK)
}

fn kernel(name: &str) -> bedplate_vm::Result<Kernel> {
    match Series::ALL.into_iter().find(|series| series.name() == name) {
        Some(series) => Kernel::get(series),
        None => Kernel::from_image(Path::new(name)),
    }
}

fn parse_file(text: &str) -> Result<File, String> {
    let (host, guest) = text.split_once(':').unwrap_or((text, text));
    let host = std::path::absolute(host).map_err(|e| format!("{host}: {e}"))?;
    let guest = if guest == text { host.clone() } else { PathBuf::from(guest) };
    if !guest.is_absolute() {
        return Err(format!("{}: the path in the guest must be absolute", guest.display()));
    }
    Ok(File { host, guest })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named() {
        let file = parse_file("/etc/hosts").unwrap();
        assert_eq!(
            (file.host.as_path(), file.guest.as_path()),
            (Path::new("/etc/hosts"), Path::new("/etc/hosts"))
        );
        assert_eq!(parse_file("/etc/hosts:/tmp/h").unwrap().guest, Path::new("/tmp/h"));
        assert!(parse_file("Cargo.toml").unwrap().guest.is_absolute());
        assert!(parse_file("/etc/hosts:h").is_err());
    }
}
