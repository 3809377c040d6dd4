//! The virtual machine: its required features, and its creation.

use std::io;
use std::os::fd::AsRawFd;

use kvm_bindings::{
    CpuId, KVM_CAP_X2APIC_API, KVM_CAP_X86_DISABLE_EXITS, KVM_MAX_CPUID_ENTRIES,
    KVM_X2APIC_API_DISABLE_BROADCAST_QUIRK, KVM_X2APIC_API_USE_32BIT_IDS, KVM_X86_DISABLE_EXITS_HLT,
    kvm_enable_cap, kvm_msi,
};
use kvm_ioctls::{Cap, Kvm, VmFd};

use super::steal_time;
use crate::arch::control;
use crate::arch::instructions::syscall;
use crate::error::{Error, Result};

/// Address of the three pages that KVM needs on Intel processors without unrestricted guests. It is below all
/// guest-physical addresses that are handed out.
const TASK_STATE_ADDRESS: usize = 0xfffb_d000;
/// Number of interrupt lines of the absent I/O controller. The local controllers are in KVM.
const INTERRUPT_LINES: u64 = 24;
/// Limit of processors without 32-bit interrupt controller numbers, because number 255 then means all processors.
const SHORT_NUMBERS: u32 = 255;

/// A virtual machine, and the properties of its processors.
#[derive(Debug)]
pub struct Machine {
    /// The virtual machine.
    pub vm: VmFd,
    /// The CPUID leaves of ring 0.
    pub cpuid: CpuId,
    /// The vector features of ring 0, in the form of XCR0.
    pub xcr0: u64,
    /// Number of bits of a physical address.
    pub address_width: u32,
    /// Whether pages of 1 GiB exist.
    pub gigabyte_pages: bool,
    /// Whether KVM keeps records of steal time, and flushes translations by marks in them.
    pub records_steal_time: bool,
    /// Number of memory slots.
    pub slots: usize,
    /// Limit of processors.
    pub max_cpus: u32,
}

impl Machine {
    /// Creates the virtual machine.
    pub fn new() -> Result<Machine> {
        if let Some(feature) = control::missing_feature() {
            let advice = "ring 0 needs a processor of 2013 or later and Linux 5.9 or later";
            return Err(Error::Missing { feature, advice });
        }
        let kvm = Kvm::new()
            .map_err(|error| Error::Open { source: io::Error::from_raw_os_error(error.errno()) })?;
        check_capabilities(&kvm)?;
        let vm = kvm.create_vm().map_err(Error::kvm("creating a virtual machine"))?;
        vm.set_tss_address(TASK_STATE_ADDRESS)
            .map_err(Error::kvm("setting an address of the virtual machine"))?;
        let irqchip = kvm_enable_cap {
            cap: Cap::SplitIrqchip as u32,
            args: [INTERRUPT_LINES, 0, 0, 0],
            ..Default::default()
        };
        vm.enable_cap(&irqchip).map_err(Error::kvm("giving it interrupt controllers"))?;
        fault_synchronously(&vm)?;
        let max_cpus = max_cpus(&kvm, &vm);
        let cpuid = kvm
            .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
            .map_err(Error::kvm("asking for processor features"))?;
        let leaf = |function, index| {
            cpuid
                .as_slice()
                .iter()
                .find(|e| e.function == function && e.index == index)
                .copied()
                .unwrap_or_default()
        };
        let state = leaf(0xd, 0);
        Ok(Machine {
            xcr0: control::xcr0(u64::from(state.edx) << 32 | u64::from(state.eax)),
            address_width: leaf(0x8000_0008, 0).eax & 0xff,
            gigabyte_pages: leaf(0x8000_0001, 0).edx & 1 << 26 != 0,
            records_steal_time: leaf(steal_time::LEAF, 0).eax & steal_time::FEATURES == steal_time::FEATURES,
            slots: kvm.get_nr_memslots(),
            max_cpus,
            cpuid,
            vm,
        })
    }
}

impl Machine {
    /// Interrupts a processor as a device would. It allocates nothing and does not change errno.
    pub fn interrupt(&self, number: u32, vector: u8) {
        const KVM_SIGNAL_MSI: u64 = 0x4020_aea5;
        let message = kvm_msi {
            address_lo: 0xfee0_0000 | (number & 0xff) << 12,
            address_hi: number & !0xff,
            data: u32::from(vector),
            ..Default::default()
        };
        let arguments = [self.vm.as_raw_fd() as u64, KVM_SIGNAL_MSI, (&raw const message) as u64, 0, 0, 0];
        // SAFETY: KVM reads the structure.
        unsafe { syscall(libc::SYS_ioctl as u64, arguments) };
    }
}

fn check_capabilities(kvm: &Kvm) -> Result<()> {
    if kvm.get_api_version() != 12 {
        return Err(Error::Missing {
            feature: "KVM's interface version 12",
            advice: "use a stock Linux kernel",
        });
    }
    let wanted = [
        (Cap::UserMemory, "KVM_CAP_USER_MEMORY"),
        (Cap::SyncRegs, "KVM_CAP_SYNC_REGS"),
        (Cap::ImmediateExit, "KVM_CAP_IMMEDIATE_EXIT"),
        (Cap::SplitIrqchip, "KVM_CAP_SPLIT_IRQCHIP"),
        (Cap::MpState, "KVM_CAP_MP_STATE"),
        (Cap::Xsave, "KVM_CAP_XSAVE"),
        (Cap::Xcrs, "KVM_CAP_XCRS"),
        (Cap::ExtCpuid, "KVM_CAP_EXT_CPUID"),
    ];
    match wanted.iter().find(|(cap, _)| !kvm.check_extension(*cap)) {
        Some((_, feature)) => Err(Error::Missing {
            feature,
            advice: "use Linux 5.16 or later with the processor's own KVM module",
        }),
        None => Ok(()),
    }
}

/// Keeps KVM from halting a processor while Linux fetches a page for it. If a page cannot be fetched, for example
/// because a file became shorter, KVM would otherwise retry forever. Without the halt, KVM_RUN fails and the thread
/// gets its SIGBUS. KVM does not halt a processor if the guest may execute `hlt` without an exit.
fn fault_synchronously(vm: &VmFd) -> Result<()> {
    let own_halt = kvm_enable_cap {
        cap: KVM_CAP_X86_DISABLE_EXITS,
        args: [u64::from(KVM_X86_DISABLE_EXITS_HLT), 0, 0, 0],
        ..Default::default()
    };
    vm.enable_cap(&own_halt).map_err(Error::kvm("turning asynchronous page faults off"))
}

fn max_cpus(kvm: &Kvm, vm: &VmFd) -> u32 {
    let long_numbers = kvm_enable_cap {
        cap: KVM_CAP_X2APIC_API,
        args: [u64::from(KVM_X2APIC_API_USE_32BIT_IDS | KVM_X2APIC_API_DISABLE_BROADCAST_QUIRK), 0, 0, 0],
        ..Default::default()
    };
    let most = u32::try_from(kvm.get_max_vcpus()).unwrap_or(SHORT_NUMBERS);
    let ids = u32::try_from(kvm.get_max_vcpu_id()).unwrap_or(SHORT_NUMBERS);
    match vm.enable_cap(&long_numbers) {
        Ok(()) => most.min(ids),
        Err(_) => most.min(ids).min(SHORT_NUMBERS),
    }
}
