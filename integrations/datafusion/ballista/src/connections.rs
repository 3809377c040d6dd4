//! Connections to other executors, kept for a while. Ballista's own pool of them is private to its crate, and an engine that is
//! made outside of it has none. Without a pool each exchange between executors would open a connection of its own.
//!
//! Lock: the idle connections. Nothing else is taken while it is held, and nothing is awaited.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ballista_core::client::BallistaClient;
use ballista_core::client_pool::{BallistaClientPool, PooledClient};
use ballista_core::error::Result;
use ballista_core::extension::BallistaConfigGrpcEndpoint;
use ballista_core::utils::GrpcClientConfig;

/// How long a connection is kept without use: as long as Ballista's own pool keeps one by default.
const IDLE_TIME: Duration = Duration::from_secs(30);

type Key = (String, u16, GrpcClientConfig);
type Idle = HashMap<Key, Vec<(BallistaClient, Instant)>>;

/// The pool.
#[derive(Clone, Default)]
pub struct Connections {
    idle: Arc<Mutex<Idle>>,
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connections").finish_non_exhaustive()
    }
}

impl Connections {
    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close_old(idle: &mut Idle) {
        idle.retain(|_, clients| {
            clients.retain(|(_, since)| since.elapsed() < IDLE_TIME);
            !clients.is_empty()
        });
    }
}

#[async_trait::async_trait]
impl BallistaClientPool for Connections {
    async fn acquire(
        &self,
        host: &str,
        port: u16,
        config: &GrpcClientConfig,
        customize_endpoint: Option<Arc<BallistaConfigGrpcEndpoint>>,
    ) -> Result<PooledClient> {
        let key = (host.to_owned(), port, config.clone());
        let known = {
            let mut idle = self.idle();
            Self::close_old(&mut idle);
            idle.get_mut(&key).and_then(Vec::pop)
        };
        let client = match known {
            Some((client, _)) => client,
            None => {
                BallistaClient::try_new(
                    host,
                    port,
                    config.max_message_size,
                    config.use_tls,
                    customize_endpoint,
                    config.io_retries_times,
                    config.io_retry_wait_time_ms,
                    config.initial_connection_window_size,
                    config.initial_stream_window_size,
                )
                .await?
            }
        };
        let home = self.clone();
        let give_back = move |client| home.idle().entry(key).or_default().push((client, Instant::now()));
        Ok(PooledClient::new(client, Box::new(give_back)))
    }

    async fn evict_idle(&self) {
        Self::close_old(&mut self.idle());
    }
}
