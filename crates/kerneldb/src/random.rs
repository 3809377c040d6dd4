//! The crate's only source of randomness.

use rand::TryRng;
use rand::rngs::SysRng;

use crate::{Error, Result};

/// Random bytes of the operating system, for secrets and identities.
pub(crate) fn secret_bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    SysRng.try_fill_bytes(&mut bytes).map_err(|e| Error::io("cannot get random bytes", e.into()))?;
    Ok(bytes)
}

/// A random word of the operating system, for secrets.
pub(crate) fn secret_word() -> Result<u64> {
    Ok(u64::from_ne_bytes(secret_bytes()?))
}
