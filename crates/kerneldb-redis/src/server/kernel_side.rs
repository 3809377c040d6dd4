//! The kernel's side of a server: the maps, and the programs if the kernel can run them.

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
}

impl KernelSide {
    /// Loads and attaches the programs for a database on arenas. Creates maps alone for a database on hash maps: the programs need
    /// arenas, so the event loop executes every command.
    pub(super) fn load(database: Arc<Database>, config: &ServerConfig, listener: &Listener) -> Result<Self> {
        config.check_engine(database.config().engine)?;
        match database.config().engine {
            EngineKind::Arena => {
                let programs = Arc::new(Programs::load(database, config, listener)?);
                Ok(KernelSide { maps: programs.maps().clone(), programs: Some(programs) })
            }
            EngineKind::HashMap => {
                let maps = Arc::new(Maps::without_programs(config.max_clients)?);
                Ok(KernelSide { maps, programs: None })
            }
        }
    }
}
