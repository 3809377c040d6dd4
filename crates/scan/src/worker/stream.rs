//! Pages for tasks: an asynchronous stream of pages that own themselves, for any executor. The [reactor](crate::reactor) wakes
//! its task.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use futures_core::Stream;

use super::{Channel, OwnedGot, OwnedPage};
use crate::Result;
use crate::reactor::Watched;

/// A channel's pages as a [`Stream`] of [`OwnedPage`]s. A page that cannot be delivered is an error, and the stream continues
/// after it. It also continues after [`Error::Held`](crate::Error::Held), when the maximum number of pages is out: the task must
/// return some before it asks again.
///
/// It does not need a runtime. [`Channel::descriptor`] is for programs with their own event loop.
#[derive(Debug)]
pub struct PageStream {
    channel: Channel,
    watched: Watched,
}

impl PageStream {
    /// Makes a stream of a channel.
    pub fn new(channel: Channel) -> Self {
        Self { channel, watched: Watched::default() }
    }

    /// The channel, to add or cancel ranges, or to look at its statistics.
    pub fn channel(&mut self) -> &mut Channel {
        &mut self.channel
    }

    /// Registers the task to be woken when the channel has something for it.
    fn wait(&mut self, waker: &Waker) -> Result<()> {
        let descriptor = self.channel.descriptor()?;
        self.watched.wake_when_readable(descriptor, waker.clone())
    }
}

impl Stream for PageStream {
    type Item = Result<OwnedPage>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        // The descriptor must exist before the worker announces that it has nothing, because that arms it.
        if let Err(error) = this.channel.descriptor().map(|_| ()) {
            return Poll::Ready(Some(Err(error)));
        }
        match this.channel.get_owned() {
            Ok(OwnedGot::Page(page)) => Poll::Ready(Some(Ok(page))),
            Ok(OwnedGot::End) => Poll::Ready(None),
            Ok(OwnedGot::NotYet) => match this.wait(context.waker()) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Some(Err(error))),
            },
            Err(error) => Poll::Ready(Some(Err(error))),
        }
    }
}

impl Drop for PageStream {
    fn drop(&mut self) {
        // The parent's reactor waits for the parent's own stream with the same epoll instance.
        if self.channel.is_inherited() {
            return;
        }
        if let Ok(descriptor) = self.channel.descriptor() {
            self.watched.forget(descriptor);
        }
    }
}
