//! The options of a service in this process, and its start.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use bedplate_threads::forks::Process;

use super::caching::CacheThreads;
use super::control::Control;
use super::inbox::Inbox;
use super::shared::Registry;
use super::{Service, Shared, Side};
use crate::cache::Options;
use crate::clock::Clock;
use crate::engine::{self, Bell, Choice, Engine};
use crate::limits::SETTLING_TIME;
use crate::{Error, Result};

type Wrap = Box<dyn FnOnce(Box<dyn Engine>) -> Box<dyn Engine> + Send>;

/// The options of a service.
#[derive(Default)]
pub struct Builder {
    choice: Choice,
    wrap: Option<Wrap>,
    monotonic: bool,
    reserved_pages: bool,
    settling_time: Option<Duration>,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("choice", &self.choice).finish_non_exhaustive()
    }
}

impl Builder {
    /// Sets the engine that reads.
    #[must_use]
    pub fn engine(mut self, choice: Choice) -> Self {
        self.choice = choice;
        self
    }

    /// Wraps the engine, to count, delay or refuse reads. The service's thread calls `wrap`.
    #[must_use]
    pub fn wrap(mut self, wrap: impl FnOnce(Box<dyn Engine>) -> Box<dyn Engine> + Send + 'static) -> Self {
        self.wrap = Some(Box::new(wrap));
        self
    }

    /// Measures time with the kernel's clock, even if the processor's counter can be trusted.
    #[must_use]
    pub fn kernel_clock(mut self) -> Self {
        self.monotonic = true;
        self
    }

    /// Sets whether the memory of channels and pools may consist of huge pages that the administrator reserved
    /// (`vm.nr_hugepages`), if there are enough. The default is `false`, because they may be reserved for another program.
    /// Otherwise the memory consists of transparent huge pages, if available.
    #[must_use]
    pub fn reserved_pages(mut self, may_be_used: bool) -> Self {
        self.reserved_pages = may_be_used;
        self
    }

    /// Sets the time for which a file must be unchanged before [readers](Service::reader) may read it: [`SETTLING_TIME`] by
    /// default. With a shorter time, a write past the page cache, or a store to a page that is mapped from the file, may go
    /// unnoticed if it takes that long.
    #[must_use]
    pub fn settling_time(mut self, time: Duration) -> Self {
        self.settling_time = Some(time);
        self
    }

    /// Starts the service.
    ///
    /// # Errors
    /// The requested engine does not work here, or threads cannot be started.
    pub fn build(self) -> Result<Service> {
        super::notice_forks()?;
        let clock = if self.monotonic { Clock::monotonic() } else { Clock::best() };
        let bell = Arc::new(Bell::new()?);
        let inbox = Arc::new(Inbox::new(bell.clone()));
        let (answer, answered) = mpsc::channel();
        let (choice, wrap, loops) = (self.choice, self.wrap, inbox.clone());
        let cache = CacheThreads::new(Options {
            choice,
            reserved_pages: self.reserved_pages,
            settling_time: self.settling_time.unwrap_or(SETTLING_TIME),
        });
        // The engine is made in the thread that uses it: io_uring requires a single issuer.
        let body = move || {
            let _over = Over(loops.clone());
            let engine = match engine::make(choice, bell) {
                Ok(engine) => engine,
                Err(error) => {
                    let _ = answer.send(Err(error));
                    return;
                }
            };
            let _ = answer.send(Ok((engine.kind(), engine.about())));
            drop(answer);
            let engine = match wrap {
                Some(wrap) => wrap(engine),
                None => engine,
            };
            Control::new(engine, loops, clock).run();
        };
        let thread =
            bedplate_threads::spawn(std::thread::Builder::new().name("scan".into()), body).map_err(|_| {
                Error::System { what: "starting the service's thread", source: rustix::io::Errno::AGAIN }
            })?;
        let (kind, about) = answered.recv().unwrap_or(Err(Error::Gone))?;
        let pools = Registry::default();
        let (reserved_pages, process) = (self.reserved_pages, Process::current());
        let thread = Some(thread);
        let shared = Shared { inbox, thread, clock, kind, about, reserved_pages, pools, cache, process };
        Ok(Service { side: Side::Here(Arc::new(shared)) })
    }
}

/// Runs at the end of the loop, even after a panic.
struct Over(Arc<Inbox>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.over();
    }
}
