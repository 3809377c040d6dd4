//! Descriptor tables (GDT, TSS and IDT), and the segments as KVM gets them.

use kvm_bindings::kvm_segment;

use super::traps;

/// Ring 0's code segment. Selectors 0x18 to 0x28 are ring 3's; SYSRET would use them.
pub const CODE: u16 = 0x08;
/// Ring 0's data segment.
pub const DATA: u16 = 0x10;
/// The task state segment.
pub const TASK: u16 = 0x30;

/// STAR: the base selectors for SYSCALL and SYSRET.
pub const STAR: u64 = (CODE as u64) << 32 | 0x1b << 48;

/// The stack of the task state segment that a vector is taken on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Stack {
    /// Exceptions. The entry moves the top of this stack down while the handler runs. A fault in the handler
    /// therefore does not overwrite the state that the handler returns to.
    Exception = 1,
    /// Non-maskable interrupts.
    Nmi = 2,
    /// Double faults and machine checks.
    Fatal = 3,
    /// Interrupts. They do not nest.
    Interrupt = 4,
}

impl Stack {
    /// Number of stacks.
    pub const COUNT: usize = 4;
    /// Size of each stack in bytes.
    pub const BYTES: usize = 64 << 10;

    fn of_vector(vector: usize) -> Stack {
        match vector {
            2 => Stack::Nmi,
            8 | 18 => Stack::Fatal,
            0..32 => Stack::Exception,
            _ => Stack::Interrupt,
        }
    }
}

/// The task state segment. Only its stacks are used.
#[derive(Debug, Clone, Copy)]
#[repr(C, packed(4))]
pub struct TaskState {
    reserved: u32,
    rsp: [u64; 3],
    reserved2: u64,
    /// The tops of the interrupt stacks; entry 0 is stack 1.
    pub ist: [u64; 7],
    reserved3: u64,
    reserved4: u16,
    io_map: u16,
}

const TASK_BYTES: usize = size_of::<TaskState>();

impl TaskState {
    /// Creates a segment with these stack tops and without port permissions.
    pub fn new(tops: [u64; Stack::COUNT]) -> TaskState {
        let mut ist = [0; 7];
        ist[..Stack::COUNT].copy_from_slice(&tops);
        TaskState {
            reserved: 0,
            rsp: [tops[Stack::Exception as usize - 1]; 3],
            reserved2: 0,
            ist,
            reserved3: 0,
            reserved4: 0,
            io_map: TASK_BYTES as u16,
        }
    }
}

/// The global descriptor table.
pub type Gdt = [u64; 8];

/// Creates a table whose task state segment is at `task`.
pub fn gdt(task: u64) -> Gdt {
    let low =
        0x8900_u64 << 32 | (TASK_BYTES as u64 - 1) | (task & 0xff_ffff) << 16 | (task >> 24 & 0xff) << 56;
    [
        0,
        0x00af_9b00_0000_ffff, // ring 0 code
        0x00cf_9300_0000_ffff, // ring 0 data
        0x00cf_fb00_0000_ffff, // ring 3 code, 32 bits
        0x00cf_f300_0000_ffff, // ring 3 data
        0x00af_fb00_0000_ffff, // ring 3 code
        low,
        task >> 32,
    ]
}

/// The interrupt descriptor table. Every vector has an entry.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct Idt([[u64; 2]; 256]);

impl Idt {
    /// Creates the table of the entries in [`traps`].
    pub fn new() -> Idt {
        Idt(std::array::from_fn(|vector| {
            let entry = traps::entry(vector);
            let stack = Stack::of_vector(vector) as u64;
            let low = entry & 0xffff
                | u64::from(CODE) << 16
                | (0x8e00 | stack) << 32 // present, interrupt gate: interrupts are off in handlers
                | (entry >> 16 & 0xffff) << 48;
            [low, entry >> 32]
        }))
    }
}

/// Ring 0's code segment in KVM's form.
pub fn code() -> kvm_segment {
    kvm_segment {
        selector: CODE,
        type_: 11,
        l: 1,
        s: 1,
        g: 1,
        present: 1,
        limit: u32::MAX,
        ..Default::default()
    }
}

/// Ring 0's data segment in KVM's form.
pub fn data() -> kvm_segment {
    kvm_segment { selector: DATA, type_: 3, db: 1, l: 0, ..code() }
}

/// The task state segment at `base` in KVM's form.
pub fn task(base: u64) -> kvm_segment {
    kvm_segment {
        base,
        limit: TASK_BYTES as u32 - 1,
        selector: TASK,
        type_: 11, // busy, 64 bits
        present: 1,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_task_state_has_the_processors_layout() {
        assert_eq!(TASK_BYTES, 104);
        assert_eq!(std::mem::offset_of!(TaskState, ist), 36);
        assert_eq!(std::mem::offset_of!(TaskState, io_map), 102);
    }

    #[test]
    fn a_descriptor_has_all_bits_of_its_address() {
        let table = gdt(0x1234_5678_9abc_def0);
        let base = table[6] >> 16 & 0xff_ffff | (table[6] >> 56) << 24 | table[7] << 32;
        assert_eq!(base, 0x1234_5678_9abc_def0);
        assert_eq!(table[6] & 0xffff, 103);
    }

    #[test]
    fn every_vector_has_an_entry_of_its_own() {
        let table = Idt::new();
        let mut entries: Vec<_> =
            table.0.iter().map(|[low, high]| low & 0xffff | (low >> 48) << 16 | high << 32).collect();
        assert_eq!(entries[14], traps::entry(14));
        entries.sort_unstable();
        entries.dedup();
        assert_eq!(entries.len(), 256);
    }
}
