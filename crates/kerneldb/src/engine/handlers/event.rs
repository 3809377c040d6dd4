//! The events of the kernel that handlers run at.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::limits::TIMER_INTERVAL;

/// The events that a handler is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandlerKind {
    /// Packets at a network interface, after the kernel has made a buffer for them.
    Tc,
    /// Packets at a network interface, before that.
    Xdp,
    /// The tracepoint of this name.
    Tracepoint(String),
    /// A timer.
    Timer,
}

impl fmt::Display for HandlerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandlerKind::Tc => f.write_str("tc"),
            HandlerKind::Xdp => f.write_str("xdp"),
            HandlerKind::Tracepoint(name) => write!(f, "tracepoint:{name}"),
            HandlerKind::Timer => f.write_str("timer"),
        }
    }
}

/// A direction of packets at an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Packets that the interface has received.
    Ingress,
    /// Packets that the interface is to send.
    Egress,
}

/// An event that a handler can be attached to. As text: `tc:INTERFACE/ingress`, `tc:INTERFACE/egress`, `xdp:INTERFACE`,
/// `tracepoint:NAME`, `timer:100ms`, `timer:5s`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandlerTarget {
    /// Packets at an interface of this process's network namespace.
    Tc(String, Direction),
    /// Received packets at an interface of this process's network namespace.
    Xdp(String),
    /// A tracepoint of the kernel. It must be the one that the handler was written for.
    Tracepoint(String),
    /// A timer with this time between the end of a run and the next one, in [`TIMER_INTERVAL`].
    Timer(Duration),
}

impl fmt::Display for HandlerTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandlerTarget::Tc(interface, Direction::Ingress) => write!(f, "tc:{interface}/ingress"),
            HandlerTarget::Tc(interface, Direction::Egress) => write!(f, "tc:{interface}/egress"),
            HandlerTarget::Xdp(interface) => write!(f, "xdp:{interface}"),
            HandlerTarget::Tracepoint(name) => write!(f, "tracepoint:{name}"),
            HandlerTarget::Timer(interval) => write!(f, "timer:{}ms", interval.as_millis()),
        }
    }
}

impl HandlerTarget {
    /// Checks the interval of a timer.
    pub(super) fn check(&self) -> std::result::Result<(), String> {
        match self {
            HandlerTarget::Timer(interval) if !TIMER_INTERVAL.contains(interval) => {
                Err(format!("timer:{interval:?}: a timer has an interval of 1 ms to 1 day"))
            }
            _ => Ok(()),
        }
    }
}

impl FromStr for HandlerTarget {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let known =
            "write tc:INTERFACE/ingress, tc:INTERFACE/egress, xdp:INTERFACE, tracepoint:NAME or timer:100ms";
        let unknown = || format!("{text} is not an event: {known}");
        let (kind, rest) = text.split_once(':').filter(|(_, rest)| !rest.is_empty()).ok_or_else(unknown)?;
        match kind {
            "tc" => match rest.rsplit_once('/') {
                Some((interface, "ingress")) => Ok(HandlerTarget::Tc(interface.into(), Direction::Ingress)),
                Some((interface, "egress")) => Ok(HandlerTarget::Tc(interface.into(), Direction::Egress)),
                _ => Err(unknown()),
            },
            "xdp" => Ok(HandlerTarget::Xdp(rest.into())),
            "tracepoint" => Ok(HandlerTarget::Tracepoint(rest.into())),
            "timer" => {
                let (number, unit) = match (rest.strip_suffix("ms"), rest.strip_suffix('s')) {
                    (Some(number), _) => (number, 1),
                    (None, Some(number)) => (number, 1000),
                    (None, None) => return Err(unknown()),
                };
                let ms = number.parse::<u32>().map_err(|_| unknown())?;
                let target = HandlerTarget::Timer(Duration::from_millis(u64::from(ms) * unit));
                target.check().map(|()| target)
            }
            _ => Err(unknown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_has_an_interval_of_a_millisecond_to_a_day() {
        let (shortest, longest) = (*TIMER_INTERVAL.start(), *TIMER_INTERVAL.end());
        for interval in [shortest, longest] {
            HandlerTarget::Timer(interval).check().unwrap();
        }
        let step = Duration::from_nanos(1);
        for interval in [Duration::ZERO, shortest - step, longest + step] {
            HandlerTarget::Timer(interval).check().unwrap_err();
        }
    }

    #[test]
    fn the_text_of_an_event_is_parsed_and_printed() {
        for text in [
            "tc:eth0/ingress",
            "tc:a/b/egress",
            "xdp:eth0",
            "tracepoint:sched_process_exec",
            "timer:1ms",
            "timer:86400000ms",
        ] {
            assert_eq!(text.parse::<HandlerTarget>().unwrap().to_string(), text);
        }
        assert_eq!("timer:5s".parse(), Ok(HandlerTarget::Timer(Duration::from_secs(5))));
        for text in [
            "",
            "tc",
            "tc:",
            "tc:eth0",
            "tc:eth0/up",
            "xdp:",
            "tracepoint:",
            "timer:",
            "timer:5",
            "timer:0ms",
            "timer:86401s",
            "timer:-1s",
            "kprobe:x",
        ] {
            let error = text.parse::<HandlerTarget>().unwrap_err();
            assert!(error.contains("is not an event") || error.contains("1 ms to 1 day"), "{text}: {error}");
        }
    }
}
