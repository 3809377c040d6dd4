//! Files that change between planning and reading, or while they are read: rows and errors are those of the default reader.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use crate::common::{Rows, refusal, scans, session, settle, tpch};
use bedplate_datafusion::{Scans, tables};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::{ExecutionPlan, collect, execute_stream};
use futures::StreamExt;

const QUERY: &str = "SELECT o_orderkey, o_totalprice, o_comment FROM orders";

/// A folder with one table, whose files are the test's own.
fn own() -> tempfile::TempDir {
    let own = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::copy(tpch().join("orders.parquet"), own.path().join("orders.parquet")).unwrap();
    File::open(own.path().join("orders.parquet")).unwrap().sync_all().unwrap();
    settle();
    crate::common::drop_pages(own.path());
    own
}

async fn plan(folder: &Path, scans: Option<&Scans>) -> (Arc<dyn ExecutionPlan>, Arc<TaskContext>) {
    let context = session(folder, 1, scans).await;
    let plan = context.sql(QUERY).await.unwrap().create_physical_plan().await.unwrap();
    (plan, context.task_ctx())
}

async fn run((plan, task): (Arc<dyn ExecutionPlan>, Arc<TaskContext>)) -> Result<Rows, String> {
    let batches = collect(plan, task).await.map_err(|error| error.to_string())?;
    Ok(tables::rows(&batches).unwrap())
}

/// Plans, changes the file, and runs both plans.
async fn after(change: impl Fn(&Path)) {
    let own = own();
    let scans = scans(crate::common::SMALL);
    if refusal(scans.service(), own.path()).is_some() {
        return;
    }
    let (plain, served) = (plan(own.path(), None).await, plan(own.path(), Some(&scans)).await);
    change(&own.path().join("orders.parquet"));
    settle();
    crate::common::drop_pages(own.path());
    let (got, want) = (run(served).await, run(plain).await);
    assert_eq!(got, want);
    assert_eq!(scans.statistics().served_bytes, 0, "it is not the file that was listed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_was_appended_to_is_left_to_the_default_reader() {
    after(|path| File::options().append(true).open(path).unwrap().write_all(&[0; 5000]).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_was_replaced_is_left_to_the_default_reader() {
    after(|path| {
        let other = path.with_file_name("other");
        std::fs::copy(tpch().join("customer.parquet"), &other).unwrap();
        std::fs::rename(other, path).unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_gone_is_the_default_reader_s_error() {
    after(|path| std::fs::remove_file(path).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_was_changed_a_moment_ago_is_left_to_the_default_reader() {
    let own = own();
    let scans = scans(crate::common::SMALL);
    if refusal(scans.service(), own.path()).is_some() {
        return;
    }
    let path = own.path().join("orders.parquet");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, bytes).unwrap();
    let want = run(plan(own.path(), None).await).await;
    File::open(&path).unwrap().sync_all().unwrap();
    crate::common::drop_pages(own.path());
    assert_eq!(run(plan(own.path(), Some(&scans)).await).await, want);
    assert_eq!(scans.statistics().served_bytes, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_changes_while_it_is_read_goes_on_by_the_default_reader() {
    let own = own();
    let scans = scans(crate::common::SMALL);
    if refusal(scans.service(), own.path()).is_some() {
        return;
    }
    let want = run(plan(own.path(), None).await).await.unwrap();
    crate::common::drop_pages(own.path());
    let (plan, task) = plan(own.path(), Some(&scans)).await;
    let mut stream = execute_stream(plan, task).unwrap();
    let mut got = tables::rows(&[stream.next().await.unwrap().unwrap()]).unwrap();
    assert!(scans.statistics().served_bytes > 0);
    let path = own.path().join("orders.parquet");
    File::options().append(true).open(&path).unwrap().write_all(b"more").unwrap();
    while let Some(batch) = stream.next().await {
        got.extend(tables::rows(&[batch.unwrap()]).unwrap());
    }
    assert!(got == want, "{} rows of {}", got.len(), want.len());
    assert_eq!(scans.statistics().fallbacks, 1);
}
