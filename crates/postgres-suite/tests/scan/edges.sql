-- What a scan meets inside one session: its own changes, subtransactions, cursors, errors, subplans. The output is compared
-- with that of a session without the extension. The variable `setup` has the settings of the session.
\set VERBOSITY terse
set client_min_messages = warning;
set synchronize_seqscans = off;
drop table if exists w, part cascade;
create table w(id int, k int, pad text, big text) with (autovacuum_enabled = off);
insert into w select g, g % 100, repeat('x', 100 + g % 50), case when g % 1000 = 0 then (select string_agg(md5(i::text), '') from generate_series(1, 300) i) end from generate_series(1, 24000) g;
create table part(id int, v int) partition by range (id);
create table part1 partition of part for values from (0) to (12000);
create table part2 partition of part for values from (12000) to (200000);
insert into part select g, g % 7 from generate_series(1, 24000) g;
analyze w;
analyze part;
checkpoint;
:setup

\echo long values, places of rows, system columns
select md5(string_agg(id || '/' || k || '/' || pad || '/' || coalesce(md5(big), ''), ',' order by id)) from w;
select count(*), sum(hashtid(ctid)::bigint), count(distinct tableoid), min(xmin::text) = max(xmin::text), max(cmin::text) from w where k in (select g from generate_series(1, 50) g);

\echo subplans, partitions, sorts
select count(*) from w a where id <= 100 and exists (select 1 from w b where b.id = a.id + 12000 and b.k = a.k);
select sum((select count(*) from part p where p.id between w.id and w.id + 3)) from w where id % 20000 = 1;
select count(*), sum(v) from part;
select v, count(*) from part group by v order by v;
select id, k from w order by pad desc, id limit 5;
select count(*) from (select id, k from w limit 3) s;
select count(*) from (select 1 from w limit 1000 offset 5000) s;
select sum(n) from generate_series(1, 3) g, lateral (select count(*) n from w where k = g offset 0) s;
select sum(x) from generate_series(1, 50) g, lateral (select k x from w where id = g limit 1) s;
with recursive r(n) as (select 1 union all select n + 1 from r where n < 4) select n, (select count(*) from w where k = n) from r order by n;
set enable_hashjoin = off;
select count(*) from w a join w b using (id) where a.k = b.k;
reset enable_hashjoin;
select count(*) from (select distinct on (k) * from w order by k, id) s;
select sum(r) from (select rank() over (partition by k order by id) r from w) s;
select count(w) from w where (w).k = 3;
select count(*) from w where id not in (select id from part where v = 3);
select k from w where id < 3 union all select v from part where id < 3 order by 1;

\echo own changes, subtransactions, combo command ids, locks, multixacts
begin;
update w set k = k + 1 where id % 3 = 0;
savepoint a;
delete from w where id % 5 = 0;
rollback to a;
savepoint b;
update w set k = k + 1 where id % 7 = 0;
release b;
savepoint c;
select count(*) from (select 1 from w where id % 11 = 0 for update) s;
rollback to c;
insert into w select g, 1, 'new' from generate_series(40001, 41000) g;
select count(*), sum(k), sum(id) from w;
declare c cursor for select count(*), sum(k), sum(id) from w;
update w set k = 0;
fetch c;
select count(*), sum(k), sum(id) from w;
close c;
rollback;
select count(*), sum(k), sum(id) from w;
begin;
insert into w values (-1, -1, 'mine');
declare d cursor for select id from w where id < 0;
delete from w where id = -1;
select count(*) from w where id < 0;
fetch all from d;
commit;

\echo a function that changes the table while it is scanned
create or replace function touch(n int) returns int language plpgsql volatile as 'begin update w set k = k + 1000 where id = n; return n; end';
begin;
select sum(touch(id)) from w where id <= 5;
select id, k from w where id <= 5 order by id;
rollback;

\echo cursors: across subtransactions, backwards, held, positioned
begin;
declare c no scroll cursor for select id from w where id % 1000 = 0;
savepoint s;
fetch 3 from c;
rollback to s;
fetch 3 from c;
move 10 in c;
fetch all from c;
commit;
begin;
declare c cursor for select id from w where id = 777;
fetch c;
update w set k = -1 where current of c;
select ctid = ctid, k from w where id = 777;
delete from w where current of c;
rollback;
begin;
declare c cursor for select id from part;
fetch 3 from c;
fetch backward 1 from c;
fetch 1 from c;
move backward all in c;
fetch 1 from c;
rollback;
begin;
declare c scroll cursor for select id from w where id % 500 = 0;
fetch last from c;
fetch prior from c;
fetch first from c;
fetch absolute 5 from c;
fetch relative -2 from c;
rollback;
begin;
declare h cursor with hold for select id from w where id % 10000 = 0;
fetch 1 from h;
commit;
fetch all from h;
close h;
begin;
declare c cursor for select id from w;
fetch 2 from c;
truncate part;
fetch 2 from c;
savepoint s;
alter table w add column late int;
rollback to s;
close c;
alter table w add column late int;
select count(*), count(late) from w;
rollback;

\echo errors in the middle, and scans after them
begin;
savepoint s;
select 1 / (id - 5000) from w where id > 4990;
rollback to s;
select count(*) from w;
commit;
select 1 / (id - 23999) from w where id > 23990;
select count(*) from w;
set statement_timeout = 1;
select count(*) from w a, w b;
reset statement_timeout;
select count(*) from w;

\echo declined: serializable, temporary, row marks
begin isolation level serializable;
select count(*) from w;
commit;
begin isolation level serializable read only deferrable;
select count(*) from w;
commit;
create temp table tt as select * from w;
select count(*) from tt;
select id from w where id % 20000 = 3 order by id for share;
update w set k = 5 where id = 7 returning id, k;
merge into part using (select id, k from w where id < 10) s on part.id = s.id when matched then update set v = s.k when not matched then insert values (s.id, s.k);
select id, v from part where id < 12 order by id;

\echo plans that are kept while settings change
prepare q(int) as select count(*) from w where k = $1;
execute q(5); execute q(6); execute q(7); execute q(5); execute q(6); execute q(7); execute q(8);
set bedplate_scan.enabled = off;
execute q(9);
reset bedplate_scan.enabled;
execute q(9);
begin isolation level serializable;
execute q(9);
commit;

\echo a table that is read and written by one statement
insert into part select id + 100000, k from w where id < 30000;
select count(*), sum(id::bigint) from part;
insert into w select id + 100000, k, pad, big from w;
select count(*), sum(id::bigint), sum(k) from w;
with moved as (delete from w where id > 120000 returning *) select count(*), (select count(*) from w) from moved;
select count(*) from w;
create table copy as select * from w;
select count(*), sum(id::bigint) from copy;
drop table copy;
create index on w(k);
set enable_seqscan = off;
select count(*) from w where k = 5;
set enable_seqscan = on;
select count(*) from w where k = 5;

\echo plans after new statistics, and tables that shrink
delete from part where id > 50;
vacuum part;
select count(*), sum(v) from part;
truncate part;
select count(*) from part;
