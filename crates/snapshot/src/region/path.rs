//! Names of files, without allocating.

use std::ffi::CStr;
use std::fmt::Write;

/// A path in a buffer on the stack. The arguments end with a NUL and fit.
pub(crate) fn path<'a>(buffer: &'a mut [u8; 32], arguments: std::fmt::Arguments<'_>) -> &'a CStr {
    struct To<'a>(&'a mut [u8], usize);
    impl Write for To<'_> {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            let to = self.0.get_mut(self.1..self.1 + text.len()).ok_or(std::fmt::Error)?;
            to.copy_from_slice(text.as_bytes());
            self.1 += text.len();
            Ok(())
        }
    }
    let mut to = To(buffer, 0);
    let written = to.write_fmt(arguments);
    debug_assert!(written.is_ok());
    CStr::from_bytes_until_nul(buffer).expect("it ends with a NUL")
}
