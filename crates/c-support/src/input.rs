//! Arguments of C programs. They are copied, never borrowed, and checked before they are used.

use std::mem::MaybeUninit;

/// The largest structure that later versions may have.
const LARGEST: usize = 4096;

/// The error of an argument.
#[derive(Debug, PartialEq, Eq)]
pub enum Wrong {
    /// A pointer that must not be NULL is NULL.
    Null(&'static str),
    /// A value is not allowed.
    Invalid(String),
}

/// A structure that begins with its size, and to which later versions may add fields.
///
/// # Safety
/// Every pattern of bytes must be a valid value of the structure. The structure must begin with a `usize`, its size, and must not
/// have padding between its fields or after them.
pub unsafe trait Sized: Copy {
    /// The size in the first version.
    const FIRST: usize;
}

/// Reads a structure. Fields of this version that the program's structure does not have are 0. The bytes of the program's
/// structure that this version does not know must be 0.
///
/// # Errors
/// [`Wrong`], with `what` as the name of the structure.
///
/// # Safety
/// `pointer` must be NULL or point to as many bytes as the first field says.
pub unsafe fn sized<T: Sized>(pointer: *const T, what: &'static str) -> Result<T, Wrong> {
    if pointer.is_null() {
        return Err(Wrong::Null(what));
    }
    // SAFETY: guaranteed by the caller.
    let size = unsafe { pointer.cast::<usize>().read_unaligned() };
    if size < T::FIRST || size > LARGEST {
        let text = format!("{what}: its size is {size}, and should be sizeof the structure");
        return Err(Wrong::Invalid(text));
    }
    let known = size_of::<T>().min(size);
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: guaranteed by the caller, and not more bytes than `value` has.
    unsafe { value.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(pointer.cast(), known) };
    for at in known..size {
        // SAFETY: guaranteed by the caller.
        if unsafe { pointer.cast::<u8>().add(at).read() } != 0 {
            let text = format!("{what}: byte {at} is set, of which this version does not know what it means");
            return Err(Wrong::Invalid(text));
        }
    }
    // SAFETY: every pattern of bytes is a valid value.
    Ok(unsafe { value.assume_init() })
}

/// Copies an array.
///
/// # Errors
/// [`Wrong`], with `what` as the name of the array.
///
/// # Safety
/// `pointer` must be NULL or point to `count` values.
pub unsafe fn array<T: Copy>(pointer: *const T, count: usize, what: &'static str) -> Result<Vec<T>, Wrong> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if pointer.is_null() {
        return Err(Wrong::Null(what));
    }
    if count > isize::MAX as usize / size_of::<T>() {
        return Err(Wrong::Invalid(format!("{what}: there cannot be {count}")));
    }
    // SAFETY: guaranteed by the caller. The reads are unaligned, because C programs cast pointers.
    Ok((0..count).map(|at| unsafe { pointer.add(at).read_unaligned() }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Grown {
        size: usize,
        old: u64,
        new: u64,
    }

    // SAFETY: the fields are integers, without padding.
    unsafe impl Sized for Grown {
        const FIRST: usize = 16;
    }

    /// The sizes of structures in programs that were compiled for earlier and for later versions.
    #[test]
    fn structures_grow() {
        let read = |words: &[usize]| -> Result<Grown, Wrong> {
            // SAFETY: a size below is at most that of `words`, or it is refused.
            unsafe { sized(words.as_ptr().cast(), "x") }
        };
        assert_eq!(read(&[16, 5, 99]), Ok(Grown { size: 16, old: 5, new: 0 }));
        assert_eq!(read(&[24, 5, 6]), Ok(Grown { size: 24, old: 5, new: 6 }));
        assert_eq!(read(&[32, 5, 6, 0]), Ok(Grown { size: 32, old: 5, new: 6 }));
        for wrong in [&[32, 5, 6, 1][..], &[0, 5, 6], &[15, 5, 6], &[usize::MAX, 5, 6]] {
            assert!(matches!(read(wrong), Err(Wrong::Invalid(_))), "{wrong:?}");
        }
        // SAFETY: NULL is refused.
        assert_eq!(unsafe { sized::<Grown>(std::ptr::null(), "x") }, Err(Wrong::Null("x")));
    }

    #[test]
    fn arrays_are_copied_and_cannot_be_larger_than_memory() {
        // SAFETY: the arrays have the lengths given, or are refused.
        unsafe {
            assert_eq!(array([1u64, 2].as_ptr(), 2, "x"), Ok(vec![1, 2]));
            assert_eq!(array::<u64>(std::ptr::null(), 0, "x"), Ok(vec![]));
            assert_eq!(array::<u64>(std::ptr::null(), 1, "x"), Err(Wrong::Null("x")));
            let most = isize::MAX as usize / 8;
            assert!(matches!(array([1u64].as_ptr(), most + 1, "x"), Err(Wrong::Invalid(_))));
        }
    }
}
