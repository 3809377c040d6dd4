//! Calls of the procedures on accounts, whose replies are the same in every server, and the compilation of other procedures.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::path::Path;

use bedplate_kerneldb::sdk;

use crate::server::{Client, words};

/// Compiles a library, as users compile theirs. Its files go into the folder.
pub fn compile(folder: &Path, name: &str, text: &str) -> Vec<u8> {
    let headers = folder.join("headers");
    sdk::write_headers(&headers).unwrap();
    let source = folder.join(format!("{name}.c"));
    std::fs::write(&source, text).unwrap();
    sdk::compile(&headers, &source, &[]).unwrap()
}

/// Commands with their replies, in the order in which one client sends them.
const CONVERSATION: &[(&str, &str)] = &[
    ("CALL account_open ann 100", "+OK"),
    ("CALL account_open bob 5", "+OK"),
    ("CALL account_open bob 5", "-EXISTS the account exists already"),
    ("CALL account_transfer ann bob 30", ":70"),
    ("GET bob", "$2\r\n35"),
    ("CALL account_balance bob", "$2\r\n35"),
    ("CALL account_balance eve", "$-1"),
    // The first account is written before the second one is found to be missing.
    ("CALL account_transfer ann eve 1", "-NOACCOUNT there is no such account"),
    ("GET ann", "$2\r\n70"),
    ("CALL account_transfer ann", "-ERR wrong number of arguments for the procedure"),
    ("CALL", "-ERR wrong number of arguments for 'call' command"),
    ("CALL nothing", "-ERR there is no procedure nothing"),
    ("CALL ACCOUNT_OPEN x 1", "-ERR there is no procedure ACCOUNT_OPEN"),
    // Queued.
    ("MULTI", "+OK"),
    ("CALL account_transfer ann bob 1", "+QUEUED"),
    ("INCRBY ann 10", "+QUEUED"),
    ("CALL account_balance ann", "+QUEUED"),
    ("EXEC", "*3\r\n:69\r\n:79\r\n$2\r\n79"),
    // A refusal without effects leaves the rest of the queue.
    ("MULTI", "+OK"),
    ("CALL account_transfer ann bob 5000", "+QUEUED"),
    ("SET other 1", "+QUEUED"),
    ("EXEC", "*2\r\n-OVERDRAWN the balance is too low\r\n+OK"),
    // So do mistakes of the client.
    ("MULTI", "+OK"),
    ("CALL nothing", "+QUEUED"),
    ("CALL account_balance 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17", "+QUEUED"),
    ("SET other 1", "+QUEUED"),
    (
        "EXEC",
        "*3\r\n-ERR there is no procedure nothing\r\n\
         -ERR a call has at most 16 arguments, of 65536 bytes together\r\n+OK",
    ),
    // A refusal with effects rolls all of it back.
    ("MULTI", "+OK"),
    ("SET other 2", "+QUEUED"),
    ("CALL account_transfer ann eve 1", "+QUEUED"),
    ("EXEC", "-EXECABORT Transaction rolled back: NOACCOUNT there is no such account"),
    ("MGET ann other", "*2\r\n$2\r\n79\r\n$1\r\n1"),
    // In a client's transaction.
    ("BEGIN", "+OK"),
    ("CALL account_transfer ann bob 9", ":70"),
    ("CALL account_transfer ann bob 71", "-OVERDRAWN the balance is too low"),
    ("GET ann", "$2\r\n70"),
    ("COMMIT", "+OK"),
    ("BEGIN", "+OK"),
    ("SET other 3", "+OK"),
    ("CALL account_transfer ann eve 1", "-NOACCOUNT there is no such account"),
    ("CALL account_balance ann", "-TXFAILED the transaction has failed and can only be rolled back"),
    ("ROLLBACK", "+OK"),
    ("GET other", "$1\r\n1"),
    ("BEGIN READ ONLY", "+OK"),
    ("CALL account_balance ann", "$2\r\n70"),
    ("CALL account_open eve 1", "-ERR operation not allowed in this transaction state"),
    ("CALL account_balance ann", "$2\r\n70"),
    ("COMMIT", "+OK"),
    // WATCH.
    ("WATCH ann", "+OK"),
    ("CALL account_transfer ann bob 1", ":69"),
    ("MULTI", "+OK"),
    ("CALL account_transfer ann bob 1", "+QUEUED"),
    ("EXEC", "*-1"),
    ("DEL ann bob other", ":3"),
];

/// Sends all of it twice: command by command, and in one packet.
pub fn converse(client: &mut Client) {
    for (line, reply) in CONVERSATION {
        client.ask(line, reply);
    }
    client.send(&CONVERSATION.iter().flat_map(|(line, _)| words(line)).collect::<Vec<u8>>());
    for (_, reply) in CONVERSATION {
        client.expect(format!("{reply}\r\n").as_bytes());
    }
}
