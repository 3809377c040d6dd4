//! A program for the guest that keeps its KVM from rewriting itself.
//!
//! Linux switches some branches of KVM by patching its own code: when the first machine is made or the last one goes, and
//! whenever no processor's interrupt controller is switched off any more, or one is again (that is with almost every
//! processor that a test makes). QEMU up to 8.0, executing several processors, may translate such code while another of
//! them patches it, and go on with what was there before: a breakpoint that nobody expects (the guest's kernel
//! panics), or the other branch (a virtual processor never gets on).
//!
//! So one machine with one processor, its controller switched off as after a reset, exists as long as the guest runs. It
//! never runs, and KVM's branches stay where they are from before the first job.

use std::arch::global_asm;

// A complete ELF file, and the only thing in its one segment. Every call that fails ends it with status 1.
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

/// The program's file.
pub(super) fn program() -> &'static [u8] {
    let (begins, ends) = (&raw const bedplate_vm_pin_begins, &raw const bedplate_vm_pin_ends);
    // SAFETY: the assembly above puts bytes that never change between the two.
    unsafe { std::slice::from_raw_parts(begins, ends as usize - begins as usize) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn it_is_a_program() {
        let file = object::File::parse(super::program()).unwrap();
        assert!(object::Object::entry(&file) > 0x400000);
        // Where there is no KVM, it says so by its status, and does not stay.
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
