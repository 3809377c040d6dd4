//! How a service in this process is to be, and its start.

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

/// How a service is to be.
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
    /// Which engine reads.
    #[must_use]
    pub fn engine(mut self, choice: Choice) -> Self {
        self.choice = choice;
        self
    }

    /// Puts something around the engine, to count, delay or refuse what is read. It is called in the service's thread.
    #[must_use]
    pub fn wrap(mut self, wrap: impl FnOnce(Box<dyn Engine>) -> Box<dyn Engine> + Send + 'static) -> Self {
        self.wrap = Some(Box::new(wrap));
        self
    }

    /// Measures by the kernel's clock even where the processor's counter could be trusted.
    #[must_use]
    pub fn kernel_clock(mut self) -> Self {
        self.monotonic = true;
        self
    }

    /// Whether the memory of channels and pools may be of huge pages that the administrator reserved (`vm.nr_hugepages`), as far as
    /// there are enough of them: `false` by default, for they may be reserved for somebody else. Without them it is of transparent
    /// huge pages, where there are any.
    #[must_use]
    pub fn reserved_pages(mut self, may_be_used: bool) -> Self {
        self.reserved_pages = may_be_used;
        self
    }

    /// How long a file must not have been changed before [readers](Service::reader) may read it:
    /// [`SETTLING_TIME`] by default. With less, a write past the page cache, or a store to a page that is mapped
    /// from the file, may go unnoticed if it takes that long.
    #[must_use]
    pub fn settling_time(mut self, time: Duration) -> Self {
        self.settling_time = Some(time);
        self
    }

    /// Starts the service.
    ///
    /// # Errors
    /// The engine that was asked for does not work here; threads cannot be started.
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
        // The engine is made in the thread that uses it: io_uring wants a single issuer.
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

/// However the loop ends.
struct Over(Arc<Inbox>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.over();
    }
}
