//! Copying the contents of a frame, which is the larger part of the cost of copy-on-write.

/// Copies the contents of one frame to another; both pointers are addresses in the process. Handlers of page faults
/// may call this: it does not allocate or fault.
///
/// # Safety
/// Both pointers must be aligned to 4096. 4096 bytes must be readable at `from` and writable at `to`. No other
/// thread may use the frame at `to` meanwhile.
#[inline]
pub unsafe fn copy_frame(to: *mut u8, from: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: by the caller's promise; AVX is available where its function is called. The direction flag is clear
    // in all Rust code.
    unsafe {
        if is_x86_feature_detected!("avx") {
            copy_by_vectors(to, from);
        } else {
            std::arch::asm!(
                "rep movsq", inout("rcx") 512 => _, inout("rdi") to => _, inout("rsi") from => _,
                options(nostack, preserves_flags)
            );
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: by the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, 4096);
    }
}

/// Copies with 128 loads and stores, which avoids the startup cost of a string instruction.
///
/// # Safety
/// The same as for [`copy_frame`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn copy_by_vectors(to: *mut u8, from: *const u8) {
    use std::arch::x86_64::{__m256i, _mm256_load_si256, _mm256_store_si256};
    const VECTORS: usize = 4096 / size_of::<__m256i>();
    // One vector for each register.
    const GROUP: usize = 16;
    let (to, from) = (to.cast::<__m256i>(), from.cast::<__m256i>());
    for group in (0..VECTORS).step_by(GROUP) {
        // SAFETY: inside of the frames, which are aligned.
        unsafe {
            let values: [__m256i; GROUP] =
                std::array::from_fn(|vector| _mm256_load_si256(from.add(group + vector)));
            for (vector, value) in values.into_iter().enumerate() {
                _mm256_store_si256(to.add(group + vector), value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(4096))]
    struct Frame([u8; 4096]);

    #[test]
    fn all_bytes_and_no_others_are_copied() {
        let from = Frame(std::array::from_fn(|byte| (byte % 251) as u8));
        let mut to = [Frame([1; 4096]), Frame([2; 4096]), Frame([3; 4096])];
        // SAFETY: both are frames of this test's.
        unsafe { copy_frame(to[1].0.as_mut_ptr(), from.0.as_ptr()) };
        assert_eq!(to[1].0, from.0);
        assert!(to[0].0.iter().all(|byte| *byte == 1) && to[2].0.iter().all(|byte| *byte == 3));
    }
}
