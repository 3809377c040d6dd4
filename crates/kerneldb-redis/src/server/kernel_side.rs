//! The kernel's side of a server: the maps, and the programs if the kernel can run them.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use bedplate_kerneldb::{Database, EngineKind, Result};

use super::ServerConfig;
use super::listener::Listener;
use super::maps::Maps;
use super::programs::Programs;

/// The maps of a server, and its programs unless the database is on hash maps.
#[derive(Clone)]
pub(super) struct KernelSide {
    pub(super) maps: Arc<Maps>,
    pub(super) programs: Option<Arc<Programs>>,
    /// The map with the sockets of local clients, of this server or of the program before it. The kernel would free replies that they have
    /// not read with the map.
    fastpath_sockets: Option<Arc<OwnedFd>>,
}

impl KernelSide {
    /// Loads and attaches the programs for a database on arenas. Creates maps alone for a database on hash maps: the programs need
    /// arenas, so the event loop executes every command. `fastpath_sockets` is that of the program before.
    pub(super) fn load(
        database: Arc<Database>,
        config: &ServerConfig,
        listener: &Listener,
        fastpath_sockets: Option<Arc<OwnedFd>>,
    ) -> Result<Self> {
        config.check_engine(database.config().engine)?;
        match database.config().engine {
            EngineKind::Arena => {
                let programs =
                    Arc::new(Programs::load(database, config, listener, fastpath_sockets.as_deref())?);
                let own = programs.fastpath_sockets().transpose()?.map(Arc::new);
                Ok(KernelSide {
                    maps: programs.maps().clone(),
                    programs: Some(programs),
                    fastpath_sockets: own.or(fastpath_sockets),
                })
            }
            EngineKind::HashMap => {
                let maps = Arc::new(Maps::without_programs(config.max_clients)?);
                Ok(KernelSide { maps, programs: None, fastpath_sockets })
            }
        }
    }

    /// The map with the sockets of local clients.
    pub(super) fn fastpath_sockets(&self) -> Option<OwnedFd> {
        let duplicate = self.fastpath_sockets.as_ref()?.try_clone();
        duplicate.inspect_err(|error| tracing::error!(%error, "local clients may lose replies")).ok()
    }
}
