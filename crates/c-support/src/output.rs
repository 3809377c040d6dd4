//! Results for C programs, of the size for which they have space.

use std::ffi::c_char;

/// Writes the part of a structure for which there is space. Bytes of `place` beyond this version's structure become 0.
///
/// # Safety
/// `place` must be writable for `size` bytes, and the structure must not have padding between its fields.
pub unsafe fn sized<T: Copy>(value: &T, place: *mut T, size: usize) {
    let known = size_of::<T>().min(size);
    let place = place.cast::<u8>();
    // SAFETY: guaranteed by the caller.
    unsafe {
        place.copy_from_nonoverlapping(std::ptr::from_ref(value).cast(), known);
        place.add(known).write_bytes(0, size - known);
    }
}

/// Writes the part of a text for which there is space, with a zero at the end.
///
/// # Safety
/// `place` must be writable for `bytes` bytes.
pub unsafe fn text(text: &str, place: *mut c_char, bytes: usize) {
    let Some(room) = bytes.checked_sub(1) else { return };
    let mut end = room.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        place.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), end);
        place.add(end).write(0);
    }
}
