//! What C programs are given, in as much room as they have.

use std::ffi::c_char;

/// Writes as much of a structure as there is room for, and zeroes into what it does not have.
///
/// # Safety
/// `place` is writable, as many bytes as `size` says, and the structure has no bytes between its fields.
pub unsafe fn sized<T: Copy>(value: &T, place: *mut T, size: usize) {
    let known = size_of::<T>().min(size);
    let place = place.cast::<u8>();
    // SAFETY: as the caller promised.
    unsafe {
        place.copy_from_nonoverlapping(std::ptr::from_ref(value).cast(), known);
        place.add(known).write_bytes(0, size - known);
    }
}

/// Writes as much of a text as there is room for, with a zero at the end.
///
/// # Safety
/// `place` is writable, as many bytes as `bytes` says.
pub unsafe fn text(text: &str, place: *mut c_char, bytes: usize) {
    let Some(room) = bytes.checked_sub(1) else { return };
    let mut end = room.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    // SAFETY: as the caller promised.
    unsafe {
        place.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), end);
        place.add(end).write(0);
    }
}
