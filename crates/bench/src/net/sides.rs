//! The servers that take turns.

use super::server::Server;
use crate::bpf::ProgramType;
use crate::{Error, Options, Result};

/// A server under test.
pub(super) struct Side {
    pub(super) name: &'static str,
    pub(super) server: Server,
    /// Type of its programs that run in the client's context.
    pub(super) client_programs: Option<ProgramType>,
}

impl Side {
    /// The baseline.
    pub(super) fn redis(options: &Options) -> Result<Side> {
        Ok(Side { name: "redis", server: Server::redis(options)?, client_programs: None })
    }

    /// Bedplate with further options of `kv serve`.
    pub(super) fn bedplate(
        options: &Options,
        name: &'static str,
        memory_bytes: u64,
        further: &[&str],
        client_programs: Option<ProgramType>,
    ) -> Result<Side> {
        Ok(Side { name, server: Server::bedplate(options, memory_bytes, further)?, client_programs })
    }

    /// Bedplate with the fast path for local clients; or the reason why this machine has none.
    pub(super) fn local(options: &Options, memory_bytes: u64) -> Result<std::result::Result<Side, String>> {
        let programs = Some(ProgramType::SkMsg);
        match Side::bedplate(options, "local", memory_bytes, &["--local-fast-path"], programs) {
            Ok(side) => Ok(Ok(side)),
            Err(Error::Missing { what, .. }) => Ok(Err(format!("local: {what}"))),
            Err(e) => Err(e),
        }
    }

    /// Whether its replies are always the same ([`super::floor`]).
    pub(super) fn is_constant(&self) -> bool {
        self.name == "floor"
    }
}
