//! Arguments of one request, borrowed from the buffer they arrived in, or owned when they are queued.

/// Position of one argument, relative to the base of its [`Args`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: usize,
    pub(super) len: usize,
    /// False: the argument was longer than the parser keeps; its bytes are gone.
    pub(super) kept: bool,
}

/// The arguments of a request; index 0 is the command's name.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    base: &'a [u8],
    spans: &'a [Span],
}

impl<'a> Args<'a> {
    pub(super) fn new(base: &'a [u8], spans: &'a [Span]) -> Self {
        Args { base, spans }
    }

    /// Number of arguments, the command's name included.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there is no argument, not even a command name.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Argument `i`; empty if there is none, or if its bytes were dropped ([`Args::dropped`]).
    pub fn get(&self, i: usize) -> &'a [u8] {
        match self.spans.get(i) {
            Some(s) if s.kept => &self.base[s.start..s.start + s.len],
            _ => &[],
        }
    }

    /// All arguments from index `from` on.
    pub fn from(&self, from: usize) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        let this = *self;
        (from.min(this.len())..this.len()).map(move |i| this.get(i))
    }

    /// Index of the first argument that was too long to be kept.
    pub fn dropped(&self) -> Option<usize> {
        self.spans.iter().position(|s| !s.kept)
    }

    /// Bytes of all arguments together.
    pub fn bytes(&self) -> usize {
        self.spans.iter().filter(|s| s.kept).map(|s| s.len).sum()
    }

    /// A copy that outlives the buffer.
    pub fn to_owned(&self) -> OwnedArgs {
        let mut owned = OwnedArgs { bytes: Vec::with_capacity(self.bytes()), spans: Vec::new() };
        for arg in self.from(0) {
            owned.push(arg);
        }
        owned
    }
}

/// Arguments with their own memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedArgs {
    bytes: Vec<u8>,
    spans: Vec<Span>,
}

impl OwnedArgs {
    /// Appends an argument.
    pub fn push(&mut self, arg: &[u8]) {
        self.spans.push(Span { start: self.bytes.len(), len: arg.len(), kept: true });
        self.bytes.extend_from_slice(arg);
    }

    /// Borrows the arguments.
    pub fn args(&self) -> Args<'_> {
        Args::new(&self.bytes, &self.spans)
    }

    /// Memory used, in bytes.
    pub fn memory(&self) -> usize {
        self.bytes.len() + self.spans.len() * size_of::<Span>()
    }
}

impl<A: AsRef<[u8]>> FromIterator<A> for OwnedArgs {
    fn from_iter<I: IntoIterator<Item = A>>(iter: I) -> Self {
        let mut owned = OwnedArgs::default();
        for arg in iter {
            owned.push(arg.as_ref());
        }
        owned
    }
}
