//! The machine that a report's absolute numbers belong to.

use std::{fmt, fs};

use serde::{Deserialize, Serialize};

/// A description of the machine, as far as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Processor's model name, with family and model where the name is generic.
    pub cpu: String,
    /// Processors that this process may run on.
    pub cores: usize,
    /// Kernel release.
    pub kernel: String,
    /// Memory of the machine in bytes.
    pub memory_bytes: u64,
    /// `none`, the hypervisor's name, or `unknown hypervisor`.
    pub virtualisation: String,
}

impl Machine {
    /// Reads the description from the kernel.
    pub fn detect() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Machine {
            cpu: cpu(&cpuinfo),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            memory_bytes: memory(&meminfo),
            virtualisation: virtualisation(&cpuinfo),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {} cores, {:.1} GiB, Linux {}, virtualisation: {}",
            self.cpu,
            self.cores,
            self.memory_bytes as f64 / (1u64 << 30) as f64,
            self.kernel,
            self.virtualisation
        )
    }
}

/// Value of `key : value` or `key: value` in a `/proc` file.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (k, v) = line.split_once(':')?;
        (k.trim() == key).then(|| v.trim())
    })
}

fn cpu(cpuinfo: &str) -> String {
    let name = field(cpuinfo, "model name").or_else(|| field(cpuinfo, "Model")).unwrap_or("unknown");
    match (field(cpuinfo, "cpu family"), field(cpuinfo, "model")) {
        (Some(family), Some(model)) => format!("{name} (family {family} model {model})"),
        _ => name.to_owned(),
    }
}

fn memory(meminfo: &str) -> u64 {
    field(meminfo, "MemTotal")
        .and_then(|v| v.split_whitespace().next()?.parse::<u64>().ok())
        .map_or(0, |kib| kib << 10)
}

fn virtualisation(cpuinfo: &str) -> String {
    let hypervisor = field(cpuinfo, "flags").is_some_and(|f| f.split_whitespace().any(|f| f == "hypervisor"));
    if !hypervisor {
        return "none".to_owned();
    }
    let read = |path| fs::read_to_string(path).ok().map(|s| s.trim().to_owned()).filter(|s| !s.is_empty());
    read("/sys/class/dmi/id/product_name")
        .or_else(|| read("/sys/hypervisor/type"))
        .or_else(cpuid_vendor)
        .unwrap_or_else(|| "unknown hypervisor".to_owned())
}

/// The hypervisor's signature in leaf 0x4000_0000.
#[cfg(target_arch = "x86_64")]
fn cpuid_vendor() -> Option<String> {
    let leaf = std::arch::x86_64::__cpuid(0x4000_0000);
    let mut bytes = Vec::with_capacity(12);
    for register in [leaf.ebx, leaf.ecx, leaf.edx] {
        bytes.extend_from_slice(&register.to_le_bytes());
    }
    bytes.retain(|b| *b != 0);
    let name = String::from_utf8(bytes).ok()?;
    Some(if name == "KVMKVMKVM" { "KVM".to_owned() } else { name }).filter(|n| !n.is_empty())
}

#[cfg(not(target_arch = "x86_64"))]
fn cpuid_vendor() -> Option<String> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_described() {
        let m = Machine::detect();
        assert!(m.cores > 0 && m.memory_bytes > 1 << 20);
        assert!(!m.cpu.is_empty() && m.kernel.contains('.') && !m.virtualisation.is_empty());
    }

    #[test]
    fn fields_are_parsed() {
        let text = "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n";
        assert_eq!(cpu(text), "AMD EPYC (family 25 model 17)");
        assert_eq!(memory("MemTotal:       1024 kB\nMemFree: 1 kB\n"), 1 << 20);
        assert_eq!(virtualisation("flags\t\t: fpu vme\n"), "none");
    }
}
