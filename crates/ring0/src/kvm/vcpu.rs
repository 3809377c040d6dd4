//! A virtual processor in the initial state of ring 0.

use std::os::fd::AsRawFd;

use kvm_bindings::{
    KVM_MP_STATE_RUNNABLE, KVM_VCPU_TSC_CTRL, KVM_VCPU_TSC_OFFSET, Msrs, kvm_device_attr, kvm_dtable,
    kvm_mp_state, kvm_msr_entry, kvm_sregs, kvm_xcrs,
};
use kvm_ioctls::VcpuFd;

use super::machine::Machine;
use super::steal_time;
use crate::arch::{apic, control, segments};
use crate::error::{Error, Result};
use crate::process::local::CpuLocal;

const KVM_SET_DEVICE_ATTR: u64 = 0x4018_aee1;

/// The properties that all processors share.
pub struct Template<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// The address of the interrupt descriptor table.
    pub idt: u64,
    /// The guest-physical address of the topmost page table.
    pub root: u64,
    /// The address of the system-call entry.
    pub syscall_entry: u64,
}

impl Template<'_> {
    /// Creates processor `number`, whose data are `local`. `record` is the guest-physical address of its record of
    /// steal time.
    pub fn create(&self, number: u32, local: &CpuLocal, record: Option<u64>) -> Result<VcpuFd> {
        let vm = &self.machine.vm;
        let cpu = vm.create_vcpu(u64::from(number)).map_err(Error::kvm("creating a virtual processor"))?;
        self.set_features(&cpu, number)?;
        set_time(&cpu)?;
        let sregs = self.sregs(&cpu, number, local)?;
        cpu.set_sregs(&sregs).map_err(Error::kvm("setting control registers"))?;
        self.set_msrs(&cpu)?;
        self.keep_record(&cpu, record)?;
        let runnable = kvm_mp_state { mp_state: KVM_MP_STATE_RUNNABLE };
        cpu.set_mp_state(runnable).map_err(Error::kvm("starting a virtual processor"))?;
        change_controller(&cpu, &[(apic::SPURIOUS_OFFSET, apic::SPURIOUS_VALUE)])?;
        Ok(cpu)
    }

    /// Sets CPUID and XCR0. This must come before the control registers, which KVM checks against them.
    fn set_features(&self, cpu: &VcpuFd, number: u32) -> Result<()> {
        let mut cpuid = self.machine.cpuid.clone();
        for entry in cpuid.as_mut_slice() {
            match entry.function {
                1 => entry.ebx = entry.ebx & 0x00ff_ffff | number << 24,
                0xb | 0x1f => entry.edx = number,
                _ => {}
            }
        }
        cpu.set_cpuid2(&cpuid).map_err(Error::kvm("setting processor features"))?;
        let mut xcrs = kvm_xcrs { nr_xcrs: 1, ..Default::default() };
        xcrs.xcrs[0].value = self.machine.xcr0;
        cpu.set_xcrs(&xcrs).map_err(Error::kvm("enabling vector registers"))
    }

    fn sregs(&self, cpu: &VcpuFd, number: u32, local: &CpuLocal) -> Result<kvm_sregs> {
        let mut sregs = cpu.get_sregs().map_err(Error::kvm("reading control registers"))?;
        let data = segments::data();
        sregs.cs = segments::code();
        (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
        sregs.gs.base = local.address();
        sregs.tr = segments::task((&raw const local.task) as u64);
        let gdt_limit = (size_of::<segments::Gdt>() - 1) as u16;
        sregs.gdt =
            kvm_dtable { base: (&raw const local.gdt) as u64, limit: gdt_limit, ..Default::default() };
        let idt_limit = (size_of::<segments::Idt>() - 1) as u16;
        sregs.idt = kvm_dtable { base: self.idt, limit: idt_limit, ..Default::default() };
        sregs.cr0 = control::CR0;
        sregs.cr3 = self.root;
        sregs.cr4 = control::CR4;
        sregs.efer = control::EFER;
        sregs.apic_base = apic::BASE | if number == 0 { apic::BASE_FIRST } else { 0 };
        Ok(sregs)
    }

    fn set_msrs(&self, cpu: &VcpuFd) -> Result<()> {
        let entry = |index, data| kvm_msr_entry { index, data, ..Default::default() };
        let list = [
            entry(control::MSR_STAR, segments::STAR),
            entry(control::MSR_LSTAR, self.syscall_entry),
            entry(control::MSR_FMASK, 0),
        ];
        let what = "setting the system-call entry";
        let msrs = Msrs::from_entries(&list).map_err(|_| Error::kvm_errno(what, libc::E2BIG))?;
        match cpu.set_msrs(&msrs).map_err(Error::kvm(what))? {
            count if count == list.len() => Ok(()),
            _ => Err(Error::kvm_errno(what, libc::EINVAL)),
        }
    }

    /// Makes KVM keep the record of steal time, if KVM supports it.
    fn keep_record(&self, cpu: &VcpuFd, record: Option<u64>) -> Result<()> {
        let Some(record) = record.filter(|_| self.machine.records_steal_time) else { return Ok(()) };
        let data = record | steal_time::ENABLED;
        let list = [kvm_msr_entry { index: steal_time::REGISTER, data, ..Default::default() }];
        let what = "asking for the record of steal time";
        let msrs = Msrs::from_entries(&list).map_err(|_| Error::kvm_errno(what, libc::E2BIG))?;
        // On a kernel without scheduling statistics, no register is set. Every thread then counts as running.
        cpu.set_msrs(&msrs).map_err(Error::kvm(what))?;
        Ok(())
    }
}

/// Stops the timer of a processor that is not running.
pub fn stop_timer(cpu: &VcpuFd) -> Result<()> {
    change_controller(cpu, &[(apic::TIMER_INITIAL_OFFSET, 0), (apic::TIMER_VECTOR_OFFSET, apic::TIMER_OFF)])
}

/// Writes registers of the interrupt controller, given as pairs of byte offset and value.
fn change_controller(cpu: &VcpuFd, registers: &[(usize, u32)]) -> Result<()> {
    let mut lapic = cpu.get_lapic().map_err(Error::kvm("reading the interrupt controller"))?;
    for (offset, value) in registers {
        for (register, byte) in lapic.regs.iter_mut().skip(*offset).zip(value.to_ne_bytes()) {
            *register = byte as _;
        }
    }
    cpu.set_lapic(&lapic).map_err(Error::kvm("setting the interrupt controller"))
}

/// Sets the time stamp counter to the host's. The clocks of the C library depend on it.
fn set_time(cpu: &VcpuFd) -> Result<()> {
    let offset = 0u64;
    let attribute = kvm_device_attr {
        group: KVM_VCPU_TSC_CTRL,
        attr: u64::from(KVM_VCPU_TSC_OFFSET),
        addr: (&raw const offset) as u64,
        flags: 0,
    };
    // The crate offers this request for other architectures only.
    // SAFETY: KVM reads the structure and the value it points to.
    let result = unsafe { libc::ioctl(cpu.as_raw_fd(), KVM_SET_DEVICE_ATTR as _, &raw const attribute) };
    if result == 0 {
        return Ok(());
    }
    Err(Error::Missing { feature: "KVM's time stamp counter offset", advice: "use Linux 5.16 or later" })
}
