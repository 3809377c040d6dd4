//! A program for the guest that keeps the guest's KVM from patching itself.
//!
//! Linux switches some branches of KVM by patching its own code. It does so when the first virtual machine is
//! created or the last one is removed. It also does so when the number of processors with a switched-off interrupt
//! controller becomes zero or nonzero. The latter happens with almost every processor that a test creates. QEMU up
//! to 8.0 emulates several processors in parallel. It may translate such code while another processor patches it,
//! and then execute the old code. The result is an unexpected breakpoint, on which the guest's kernel panics, or
//! the wrong branch, with which a virtual processor makes no progress.
//!
//! This program therefore creates one virtual machine with one processor that exists as long as the guest runs. The
//! processor's controller is switched off, as after a reset. The machine never runs. KVM's branches then keep their
//! state from before the first job.

use std::arch::global_asm;

// A complete ELF file with one segment, which contains the whole file. If a call fails, the program exits with
// status 1.
global_asm!(
    r#"
    .section .rodata.bedplate_vm_pin, "a"
    .balign 8
bedplate_vm_pin_begins:
    .byte 0x7f, 'E', 'L', 'F', 2, 1, 1, 0       # 64 bits, little-endian
    .quad 0
    .short 2, 62                                # a program for x86-64
    .long 1
    .quad 0x400000 + 3f - bedplate_vm_pin_begins
    .quad 2f - bedplate_vm_pin_begins           # where the list of segments is
    .quad 0
    .long 0
    .short 64, 56, 1, 0, 0, 0
2:  .long 1, 5                                  # to be loaded, to be read and executed
    .quad 0, 0x400000, 0x400000
    .quad bedplate_vm_pin_ends - bedplate_vm_pin_begins
    .quad bedplate_vm_pin_ends - bedplate_vm_pin_begins
    .quad 4096

3:  lea 8f(%rip), %rdi
    mov $2, %esi                                # O_RDWR
    mov $2, %eax                                # open
    call 6f
    mov $0xae01, %esi                           # KVM_CREATE_VM
    call 5f
    mov $0xae60, %esi                           # KVM_CREATE_IRQCHIP
    mov %eax, %ebx
    call 5f
    mov %ebx, %eax
    mov $0xae41, %esi                           # KVM_CREATE_VCPU
    call 5f
    mov $57, %eax                               # fork: the child keeps the files
    call 6f
    test %eax, %eax
    jz 4f
    xor %edi, %edi
    jmp 7f
4:  mov $34, %eax                               # pause
    syscall
    jmp 4b
5:  mov %eax, %edi                              # an ioctl of the file in eax
    xor %edx, %edx
    mov $16, %eax
6:  syscall
    test %eax, %eax
    js 9f
    ret
9:  mov $1, %edi
7:  mov $60, %eax                               # exit
    syscall
8:  .asciz "/dev/kvm"
bedplate_vm_pin_ends:
    .globl bedplate_vm_pin_begins
    .globl bedplate_vm_pin_ends
    .text
    "#,
    options(att_syntax)
);

unsafe extern "C" {
    static bedplate_vm_pin_begins: u8;
    static bedplate_vm_pin_ends: u8;
}

/// The program's ELF file.
pub(super) fn program() -> &'static [u8] {
    let (begins, ends) = (&raw const bedplate_vm_pin_begins, &raw const bedplate_vm_pin_ends);
    // SAFETY: the assembly above puts constant bytes between the two symbols.
    unsafe { std::slice::from_raw_parts(begins, ends as usize - begins as usize) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn it_is_a_program() {
        let file = object::File::parse(super::program()).unwrap();
        assert!(object::Object::entry(&file) > 0x400000);
        // Without KVM, the program must exit with status 1 instead of staying in the background.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pin");
        std::fs::write(&path, super::program()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let status = std::process::Command::new("unshare")
            .args(["-rm", "sh", "-c", "mount -t tmpfs none /dev && exec \"$0\""])
            .arg(&path)
            .status();
        assert_eq!(status.unwrap().code(), Some(1));
    }
}
