//! The program `bedplate-datafusion`.

use std::process::Command;

use crate::common::{alone, drop_pages, query_file, refusal, tpch};
use bedplate_datafusion::Service;

/// Runs query 6, and returns how many bytes the service delivered, and how many the default reader.
fn run(arguments: &[&str]) -> (u64, u64) {
    drop_pages(&tpch());
    let mut command = Command::new(env!("CARGO_BIN_EXE_bedplate-datafusion"));
    command.arg("--data").arg(tpch()).arg("--query").arg(query_file("q06")).args(arguments);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    (printed["served_bytes"].as_u64().unwrap(), printed["plain_bytes"].as_u64().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_serves_small_files_if_it_is_told_to() {
    let _alone = alone().await;
    // The program's own service takes no file that was changed a moment ago.
    let service = Service::start().unwrap();
    while service
        .reader(tpch().join("orders.parquet").as_path())
        .is_err_and(|e| e.to_string().contains("moment"))
    {
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
    if refusal(&service, &tpch()).is_some() {
        return;
    }
    let (served, all) = run(&[]);
    assert!(served == 0 && all > 0);
    assert_eq!(run(&["--plain"]), (0, all));
    let (served, plain) = run(&["--min-file-bytes", "1"]);
    assert!(served > 0 && served + plain == all, "{served} + {plain} of {all}");
}
