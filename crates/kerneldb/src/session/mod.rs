//! Sessions, and the types that run operators through them.
//!
//! `operators` is the [`Session`], one system call for each operator; [`Trace`] runs many operators in one call,
//! [`Session::call`] runs a procedure of a library by its name, [`Procedure`] is a program of a user's [`Application`], and [`Replayer`] applies logged transactions.

mod application;
mod call;
mod handler;
mod library;
mod operators;
mod procedure;
mod replayer;
mod trace;
mod trace_program;

pub use application::{ACCOUNTS, Application, VOTER, VOTER_HASHMAP, VOTER_PROCEDURES, VOTER_STEPS};
pub use call::{FoundProcedure, Reply};
pub use handler::HandlerInfo;
pub(crate) use handler::{list as list_handlers, run as run_handler};
pub use library::{ProcedureInfo, read as read_library};
pub(crate) use library::{list as list_procedures, load as load_library};
pub use operators::Session;
pub use procedure::Procedure;
pub use replayer::Replayer;
pub use trace::{TRACE_KEY, Trace, TraceOutcome};
pub(crate) use trace_program::TraceProgram;
