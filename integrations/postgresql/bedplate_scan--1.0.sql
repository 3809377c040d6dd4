/* SPDX-License-Identifier: Apache-2.0 OR MIT */
\echo Use "CREATE EXTENSION bedplate_scan" to load this file. \quit

/* The columns are those of BpsCounter, in its order, after the process. */
CREATE FUNCTION bedplate_scan_statistics(
    OUT pid integer,
    OUT chunks_direct bigint,
    OUT blocks_direct bigint,
    OUT blocks_from_buffer_manager bigint,
    OUT blocks_at_start bigint,
    OUT blocks_in_shared_buffers bigint,
    OUT blocks_in_page_cache bigint,
    OUT blocks_torn bigint,
    OUT blocks_undecided bigint,
    OUT blocks_changed bigint,
    OUT blocks_not_read bigint,
    OUT waits bigint,
    OUT wait_time double precision,
    OUT bytes_read bigint,
    OUT bytes_shared bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

CREATE VIEW bedplate_scan_statistics AS SELECT * FROM bedplate_scan_statistics();

COMMENT ON VIEW bedplate_scan_statistics IS 'What scans past the page cache did in each backend; times in milliseconds';

GRANT SELECT ON bedplate_scan_statistics TO PUBLIC;
