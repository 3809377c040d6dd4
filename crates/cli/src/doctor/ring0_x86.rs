//! The probes of ring0 on x86-64. They create a virtual machine with one page of code, run it for a moment and
//! drop it.

use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::time::{Duration, Instant};

use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_segment, kvm_userspace_memory_region};
use kvm_ioctls::{Cap, Kvm, VcpuExit};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::unopened;
use crate::doctor::Check;

const DEVICE: (&str, &str) = ("kvm-device", "/dev/kvm");
const API: (&str, &str) = ("kvm-api", "KVM interface version 12");
const CAPS: (&str, &str) = ("kvm-capabilities", "KVM capabilities");
const NATIVE: (&str, &str) = ("kvm-native", "ring 0 on the processor itself");
const FEATURES: (&str, &str) = ("processor-features", "FSGSBASE and XSAVE");
const PHYS: (&str, &str) = ("maxphyaddr", "physical address width");

/// Every check of the component.
pub fn checks() -> Vec<Check> {
    let kvm = match Kvm::new() {
        Ok(kvm) => kvm,
        Err(error) => {
            return vec![
                device_failed(error.errno()).required(),
                unopened(API.0, API.1).required(),
                unopened(CAPS.0, CAPS.1).required(),
                unopened(NATIVE.0, NATIVE.1).required(),
                features().required(),
                address_width(),
            ];
        }
    };
    vec![
        Check::yes(DEVICE.0, DEVICE.1, "can be opened").required(),
        api(&kvm).required(),
        capabilities(&kvm).required(),
        native(&kvm).required(),
        features().required(),
        address_width(),
    ]
}

fn device_failed(errno: i32) -> Check {
    let error = std::io::Error::from_raw_os_error(errno);
    match errno {
        libc::EACCES | libc::EPERM => Check::no(DEVICE.0, DEVICE.1, error.to_string())
            .advice("run as root, or join the group that owns it: usermod -aG kvm $USER"),
        libc::ENOENT if has_virtualization() => Check::no(DEVICE.0, DEVICE.1, "does not exist")
            .advice("modprobe kvm_intel or kvm_amd; in a container pass --device /dev/kvm"),
        libc::ENOENT => {
            Check::no(DEVICE.0, DEVICE.1, "does not exist, and the processor shows no VT-x or AMD-V").advice(
                "enable virtualization in the firmware, or nested virtualization in the host's hypervisor",
            )
        }
        _ => Check::no(DEVICE.0, DEVICE.1, error.to_string())
            .advice("modprobe kvm_intel or kvm_amd and read what dmesg says about it"),
    }
}

/// Whether the processor shows VT-x (leaf 1, ECX bit 5) or AMD-V (leaf 0x80000001, ECX bit 2).
fn has_virtualization() -> bool {
    __cpuid(1).ecx >> 5 & 1 == 1 || __cpuid(0x8000_0001).ecx >> 2 & 1 == 1
}

fn api(kvm: &Kvm) -> Check {
    match kvm.get_api_version() {
        12 => Check::yes(API.0, API.1, "it is 12"),
        other => Check::no(API.0, API.1, format!("it is {other}")).advice("use a stock Linux kernel"),
    }
}

fn capabilities(kvm: &Kvm) -> Check {
    let wanted = [
        (Cap::UserMemory, "USER_MEMORY"),
        (Cap::SyncRegs, "SYNC_REGS"),
        (Cap::ImmediateExit, "IMMEDIATE_EXIT"),
        (Cap::SplitIrqchip, "SPLIT_IRQCHIP"),
        (Cap::MpState, "MP_STATE"),
        (Cap::Xsave, "XSAVE"),
        (Cap::Xcrs, "XCRS"),
        (Cap::ExtCpuid, "EXT_CPUID"),
    ];
    let missing: Vec<_> =
        wanted.iter().filter(|(cap, _)| !kvm.check_extension(*cap)).map(|(_, name)| *name).collect();
    let slots = kvm.get_nr_memslots();
    if !missing.is_empty() {
        return Check::no(CAPS.0, CAPS.1, format!("missing: {}", missing.join(", ")))
            .advice("use a stock Linux 5.10 or newer with the processor's own KVM module");
    }
    Check::yes(CAPS.0, CAPS.1, format!("all {} are there, {slots} memory slots", wanted.len()))
}

/// Times a loop, because a KVM in software starts virtual machines but is of no use here. It emulates ring 0 at
/// about a microsecond an instruction.
fn native(kvm: &Kvm) -> Check {
    const PER_INSTRUCTION: Duration = Duration::from_nanos(40);
    match run_loop(kvm) {
        Ok(took) => {
            let each = took / LOOP_INSTRUCTIONS;
            if each <= PER_INSTRUCTION {
                Check::yes(NATIVE.0, NATIVE.1, format!("{LOOP_INSTRUCTIONS} instructions took {took:.0?}"))
            } else {
                Check::no(NATIVE.0, NATIVE.1, format!("this KVM emulates ring 0: {each:.0?} an instruction"))
                    .advice(
                        "use a machine with VT-x or AMD-V, or a virtual machine with nested virtualization; \
                         to try it anyway: bedplate vm run",
                    )
            }
        }
        Err(why) => Check::no(NATIVE.0, NATIVE.1, why)
            .advice("use a machine with VT-x or AMD-V, or a virtual machine with nested virtualization"),
    }
}

/// Number of iterations, of two instructions each. At a microsecond an instruction the probe takes 20 ms.
const LOOP_ITERATIONS: u32 = 10_000;
const LOOP_INSTRUCTIONS: u32 = LOOP_ITERATIONS * 2;

/// Guest memory, mapped here; unmapped when dropped, after the virtual machine.
struct Memory(*mut u8);

impl Memory {
    /// Guest-physical layout: page tables in the first three pages, code in the fourth.
    const SIZE: usize = 4 * 4096;
    const CODE: usize = 3 * 4096;

    fn new() -> Result<Memory, String> {
        // SAFETY: a new private mapping at an address of the kernel's choice.
        let address = unsafe {
            let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            mmap_anonymous(std::ptr::null_mut(), Memory::SIZE, prot, flags)
        };
        address.map(|a| Memory(a.cast())).map_err(|e| format!("guest memory: {e}"))
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= Memory::SIZE);
        // SAFETY: within the mapping, as was just checked, and the guest is not running yet.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.add(offset), bytes.len()) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; the virtual machine was dropped before. A failure would leave
        // four pages mapped until the process ends.
        let _ = unsafe { munmap(self.0.cast(), Memory::SIZE) };
    }
}

/// Runs the loop in 64-bit ring 0 and returns the time that it took.
fn run_loop(kvm: &Kvm) -> Result<Duration, String> {
    const TABLE: u64 = 3; // present, writable
    const HUGE: u64 = 1 << 7;
    let memory = Memory::new()?;
    memory.write(0, &(0x1000 | TABLE).to_ne_bytes());
    memory.write(0x1000, &(0x2000 | TABLE).to_ne_bytes());
    memory.write(0x2000, &(TABLE | HUGE).to_ne_bytes());
    // mov ecx, LOOP_ITERATIONS; 1: dec ecx; jnz 1b; hlt
    let mut code = vec![0xb9];
    code.extend(LOOP_ITERATIONS.to_le_bytes());
    code.extend([0xff, 0xc9, 0x75, 0xfc, 0xf4]);
    memory.write(Memory::CODE, &code);

    let text = |what: &'static str| move |e: kvm_ioctls::Error| format!("{what}: {e}");
    let vm = kvm.create_vm().map_err(text("creating a virtual machine"))?;
    let region = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: 0,
        memory_size: Memory::SIZE as u64,
        userspace_addr: memory.0 as u64,
    };
    // SAFETY: `memory` outlives `vm` (it was declared before and so is dropped after it).
    unsafe { vm.set_user_memory_region(region) }.map_err(text("giving it memory"))?;
    let mut vcpu = vm.create_vcpu(0).map_err(text("creating a processor"))?;
    let cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).map_err(text("asking for its features"))?;
    vcpu.set_cpuid2(&cpuid).map_err(text("setting its features"))?;
    let mut sregs = vcpu.get_sregs().map_err(text("reading its registers"))?;
    let segment = kvm_segment { limit: u32::MAX, present: 1, s: 1, g: 1, ..Default::default() };
    sregs.cs = kvm_segment { selector: 8, type_: 11, l: 1, ..segment };
    let data = kvm_segment { selector: 16, type_: 3, db: 1, ..segment };
    (sregs.ds, sregs.es, sregs.ss) = (data, data, data);
    sregs.cr3 = 0;
    sregs.cr4 = 1 << 5; // PAE
    sregs.cr0 = 0x8005_0033; // paging, WP, protected mode
    sregs.efer = 0xd01; // NX, long mode, system calls
    vcpu.set_sregs(&sregs).map_err(text("setting up 64-bit mode"))?;
    let mut regs = vcpu.get_regs().map_err(text("reading its registers"))?;
    (regs.rip, regs.rflags) = (Memory::CODE as u64, 2);
    vcpu.set_regs(&regs).map_err(text("setting its registers"))?;

    // The first entry includes faults on guest memory, so the second one counts.
    let mut took = Duration::MAX;
    for _ in 0..2 {
        vcpu.set_regs(&regs).map_err(text("setting its registers"))?;
        let start = Instant::now();
        match vcpu.run().map_err(text("running ring 0"))? {
            VcpuExit::Hlt => took = took.min(start.elapsed()),
            other => return Err(format!("ring 0 stopped with {other:?}")),
        }
    }
    Ok(took)
}

/// Checks the features that ring0's entry and exit use: FS and GS bases without system calls, and saving vector registers.
fn features() -> Check {
    let missing: Vec<&str> = [
        ("FSGSBASE", __cpuid_count(7, 0).ebx & 1 == 1),
        ("XSAVE", __cpuid(1).ecx >> 26 & 1 == 1),
        ("XSAVE switched on by the kernel", __cpuid(1).ecx >> 27 & 1 == 1),
    ]
    .into_iter()
    .filter_map(|(name, there)| (!there).then_some(name))
    .collect();
    if missing.is_empty() {
        return Check::yes(FEATURES.0, FEATURES.1, "both are there");
    }
    Check::no(FEATURES.0, FEATURES.1, format!("missing: {}", missing.join(", ")))
        .advice("let the virtual machine see the host's processor (QEMU: -cpu host)")
}

fn address_width() -> Check {
    let bits = __cpuid(0x8000_0008).eax & 0xff;
    let huge = __cpuid(0x8000_0001).edx >> 26 & 1 == 1;
    // Each window of 1 GiB of virtual memory takes 1 GiB of guest-physical space above 4 GiB.
    let windows = (1u64 << bits.clamp(33, 52) >> 30) - 4;
    let reason = format!("{bits} bits: {windows} windows of 1 GiB");
    match (bits, huge) {
        (0..=36, _) => Check::partly(PHYS.0, PHYS.1, reason)
            .advice("let the virtual machine see the host's address width (QEMU: host-phys-bits=on)"),
        (_, false) => Check::partly(PHYS.0, PHYS.1, format!("{reason}, but no 1 GiB pages"))
            .advice("let the virtual machine see pdpe1gb; windows then take 2 MiB entries instead"),
        _ => Check::yes(PHYS.0, PHYS.1, reason),
    }
}
