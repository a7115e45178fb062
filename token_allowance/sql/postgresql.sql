-- Stored functions and triggers for PostgreSQL. Every function carries its version in its name, so
-- that old and new code can run side by side during a deploy. Installed again after each migrate.

CREATE OR REPLACE FUNCTION token_allowance_now_v1() RETURNS bigint LANGUAGE sql VOLATILE AS $fn$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$fn$;

-- Policy version: one number per kind, raised inside the writer's own transaction, whoever writes.
-- Numbers follow the clock, so a version seen before a flush can never come back after it.
CREATE OR REPLACE FUNCTION token_allowance_policy_changed_v1() RETURNS trigger LANGUAGE plpgsql AS $fn$
BEGIN
    INSERT INTO token_allowance_policyversion AS p (kind, number)
    VALUES (TG_ARGV[0], token_allowance_now_v1())
    ON CONFLICT (kind) DO UPDATE SET number = greatest(p.number + 1, excluded.number);
    RETURN NULL;
END $fn$;

-- From when on a limit has counted without a gap (protocol 3): anything that changes what it counts
-- starts anew; its amount and its mode do not.
CREATE OR REPLACE FUNCTION token_allowance_limit_tracked_v1() RETURNS trigger LANGUAGE plpgsql AS $fn$
BEGIN
    IF TG_OP = 'INSERT' OR (NEW.is_active AND NOT OLD.is_active)
        OR OLD.expires_at IS DISTINCT FROM NEW.expires_at AND OLD.expires_at IS NOT NULL
        OR (OLD.tenant, OLD."user", OLD.session, OLD.feature, OLD.model, OLD.plan, OLD."window",
            OLD.rolling_seconds, OLD.anchor_day, OLD.time_zone, OLD.unit)
        IS DISTINCT FROM
           (NEW.tenant, NEW."user", NEW.session, NEW.feature, NEW.model, NEW.plan, NEW."window",
            NEW.rolling_seconds, NEW.anchor_day, NEW.time_zone, NEW.unit)
    THEN
        NEW.tracked_since := token_allowance_now_v1();
    END IF;
    RETURN NEW;
END $fn$;

CREATE OR REPLACE FUNCTION token_allowance_tenant_tracked_v1() RETURNS trigger LANGUAGE plpgsql AS $fn$
BEGIN
    IF TG_OP = 'DELETE' THEN
        UPDATE token_allowance_limit SET tracked_since = token_allowance_now_v1()
        WHERE tenant IN ('*', OLD.key);
        RETURN OLD;
    END IF;
    IF TG_OP = 'INSERT'
        OR (OLD.key, OLD.plan, OLD.time_zone) IS DISTINCT FROM (NEW.key, NEW.plan, NEW.time_zone)
    THEN
        NEW.tracked_since := token_allowance_now_v1();
    END IF;
    RETURN NEW;
END $fn$;

-- A lost counter must not be taken for one that has not been opened yet (case C61), nor a tenant's
-- for one that has always counted: every limit starts anew, which costs one sum over the ledger.
CREATE OR REPLACE FUNCTION token_allowance_track_anew_v1() RETURNS trigger LANGUAGE plpgsql AS $fn$
BEGIN
    UPDATE token_allowance_limit SET tracked_since = token_allowance_now_v1();
    RETURN NULL;
END $fn$;

-- The slices of a rolling window go when they are old.
CREATE OR REPLACE FUNCTION token_allowance_counters_lost_v1() RETURNS trigger LANGUAGE plpgsql AS $fn$
BEGIN
    IF EXISTS (SELECT FROM gone WHERE slice IS NULL) THEN
        UPDATE token_allowance_limit SET tracked_since = token_allowance_now_v1();
    END IF;
    RETURN NULL;
END $fn$;

DO $do$
DECLARE
    watched record;
BEGIN
    FOR watched IN SELECT * FROM (VALUES
        ('token_allowance_limit', 'limits'),
        ('token_allowance_limitincrease', 'limits'),
        ('token_allowance_degraderule', 'limits'),
        ('token_allowance_tenant', 'tenants'),
        ('token_allowance_price', 'prices'),
        ('token_allowance_modelalias', 'prices'),
        ('token_allowance_switch', 'switches')) AS t(table_name, kind)
    LOOP
        EXECUTE format('DROP TRIGGER IF EXISTS token_allowance_version ON %I', watched.table_name);
        EXECUTE format(
            'CREATE TRIGGER token_allowance_version AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON %I '
            'FOR EACH STATEMENT EXECUTE FUNCTION token_allowance_policy_changed_v1(%L)',
            watched.table_name, watched.kind);
    END LOOP;
    DROP TRIGGER IF EXISTS token_allowance_tracked ON token_allowance_limit;
    CREATE TRIGGER token_allowance_tracked BEFORE INSERT OR UPDATE ON token_allowance_limit
        FOR EACH ROW EXECUTE FUNCTION token_allowance_limit_tracked_v1();
    DROP TRIGGER IF EXISTS token_allowance_tracked ON token_allowance_tenant;
    CREATE TRIGGER token_allowance_tracked BEFORE INSERT OR UPDATE OR DELETE ON token_allowance_tenant
        FOR EACH ROW EXECUTE FUNCTION token_allowance_tenant_tracked_v1();
    DROP TRIGGER IF EXISTS token_allowance_emptied ON token_allowance_tenant;
    CREATE TRIGGER token_allowance_emptied AFTER TRUNCATE ON token_allowance_tenant
        FOR EACH STATEMENT EXECUTE FUNCTION token_allowance_track_anew_v1();
    DROP TRIGGER IF EXISTS token_allowance_lost ON token_allowance_counter;
    CREATE TRIGGER token_allowance_lost AFTER DELETE ON token_allowance_counter
        REFERENCING OLD TABLE AS gone
        FOR EACH STATEMENT EXECUTE FUNCTION token_allowance_counters_lost_v1();
    DROP TRIGGER IF EXISTS token_allowance_emptied ON token_allowance_counter;
    CREATE TRIGGER token_allowance_emptied AFTER TRUNCATE ON token_allowance_counter
        FOR EACH STATEMENT EXECUTE FUNCTION token_allowance_track_anew_v1();
END $do$;

-- Has this call been reserved before, by its id or by its tenant's idempotency key?
CREATE OR REPLACE FUNCTION token_allowance_known_v1(p_row jsonb) RETURNS boolean LANGUAGE sql STABLE AS $fn$
    SELECT EXISTS (SELECT FROM token_allowance_reservation r WHERE r.id = (p_row ->> 'id')::uuid)
        OR EXISTS (SELECT FROM token_allowance_reservation r WHERE r.idempotency_key <> ''
            AND r.idempotency_key = p_row ->> 'idempotency_key' AND r.tenant = p_row ->> 'tenant')
$fn$;

-- Hold more in one slice of a rolling budget, whose own row the caller has locked; the figures are
-- those before. 62 slices behind and 60 ahead are counted and 126 kept, as rolling.py explains. A new
-- slice ends old ones, by the slower of two clocks, and never waits for one that a settle has locked.
CREATE OR REPLACE FUNCTION token_allowance_hold_slice_v1(
    p_key text, p_slice bigint, p_need bigint, OUT used bigint, OUT reserved bigint)
LANGUAGE plpgsql VOLATILE AS $fn$
#variable_conflict use_column
DECLARE
    name text := left(p_key, -1) || p_slice;
    micros bigint;
BEGIN
    SELECT coalesce(sum(c.used), 0)::bigint, coalesce(sum(c.reserved), 0)::bigint INTO used, reserved
    FROM token_allowance_counter c WHERE c.part_of = p_key AND c.slice BETWEEN p_slice - 62 AND p_slice + 60;
    UPDATE token_allowance_counter c SET reserved = c.reserved + p_need WHERE c.key = name;
    IF FOUND THEN
        RETURN;
    END IF;
    INSERT INTO token_allowance_counter AS c (key, used, reserved, since, part_of, slice)
    VALUES (name, 0, p_need, 0, p_key, p_slice)
    ON CONFLICT (key) DO UPDATE SET reserved = c.reserved + p_need;
    micros := (split_part(split_part(p_key, '|', 4), '/', 2)::bigint * 1000000 + 59) / 60;
    DELETE FROM token_allowance_counter WHERE key IN (
        SELECT c.key FROM token_allowance_counter c WHERE c.part_of = p_key
            AND c.slice < least(p_slice, token_allowance_now_v1() / micros) - 126
        FOR UPDATE SKIP LOCKED);
END $fn$;

-- Stand in these queues for another three seconds (protocol 15). Its own tickets first, and only then
-- those of the dead that nobody has locked: so two callers never wait for each other's. That a crash
-- may lose them costs nothing, so no commit waits for the disk.
CREATE OR REPLACE FUNCTION token_allowance_join_v1(p_ticket uuid, p_number bigint, p_keys text[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $fn$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    INSERT INTO token_allowance_ticket (call, key, number, until)
    SELECT p_ticket, k.key, p_number, clock_timestamp() + interval '3 seconds' FROM unnest(p_keys) AS k(key)
    ON CONFLICT (key, call) DO UPDATE SET until = excluded.until;
    PERFORM token_allowance_sweep_v1();
END $fn$;

CREATE OR REPLACE FUNCTION token_allowance_sweep_v1() RETURNS void LANGUAGE sql VOLATILE AS $fn$
    DELETE FROM token_allowance_ticket WHERE id IN (
        SELECT t.id FROM token_allowance_ticket t WHERE t.until <= clock_timestamp() FOR UPDATE SKIP LOCKED)
$fn$;

-- Reserve: take the needs from every counter, or from none.
--
-- p_call, arrays as text, which a driver writes and the server reads in a tenth of the time:
--   keys     {"8|tenant=acme|cost|day/1/UTC|20261130T000000Z","9|global|…"}, in lock order
--   needs    {80000,80000}       limits {500000,NULL}: NULL is counted, never refused
--   since    a counter counted since an earlier moment than this must be seeded from the ledger
--   fresh    a missing counter is zero, for its window began while we were counting
--   version, lease_ms            of the policy; of the hold
-- and where they are not as usual
--   slices   {NULL,29384}        where the window rolls: the slice to hold it in
--   hard     {t,t}               f only notes that the limit would have refused
--   degrades {450000,NULL}       used from which on "degrade" is the answer, for a cheaper plan is at hand
--   ticket, number               if it waits for room: its name and its place in line
--   sure     true                it had room before: take it, and look only if that fails
-- p_row      the ledger row; expires_at is set here, by the database's clock
-- status     admitted, refused, stale (reload the policy), seed (seed the counters in marks), repeat,
--            degrade (ask again with the cheaper plan: these marks have reached their level)
-- marks      1-based places: refused by, to be seeded, or at their level
-- rank       of a refusal: how many stand before it in a queue. They go first even if there is room.
CREATE OR REPLACE FUNCTION token_allowance_reserve_v1(
    p_call jsonb, p_row jsonb,
    OUT status text, OUT marks int[], OUT used bigint[], OUT reserved bigint[], OUT rank int)
LANGUAGE plpgsql VOLATILE AS $fn$
#variable_conflict use_column
DECLARE
    p_version bigint := p_call ->> 'version';
    p_keys text[] := p_call ->> 'keys';
    p_slices bigint[] := p_call ->> 'slices';
    p_needs bigint[] := p_call ->> 'needs';
    p_limits bigint[] := p_call ->> 'limits';
    p_hard boolean[] := p_call ->> 'hard';
    p_since bigint[] := p_call ->> 'since';
    p_degrades bigint[] := p_call ->> 'degrades';
    p_lease_ms bigint := p_call ->> 'lease_ms';
    p_ticket uuid := p_call ->> 'ticket';
    p_number bigint := p_call ->> 'number';
    p_fresh boolean[];
    sure boolean := p_call ? 'sure';
    n int := cardinality(p_keys);
    u bigint; h bigint; s bigint; v bigint; missing boolean := false; noted boolean := false;
    seeds int[] := '{}'; reached int[] := '{}'; over int[] := '{}';
    waiting boolean; ahead int := 0; held boolean := true;
    r token_allowance_reservation;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'token_allowance needs READ COMMITTED' USING ERRCODE = '25001';
    END IF;
    PERFORM set_config('lock_timeout', '2000', true);
    PERFORM pg_advisory_xact_lock_shared(8313, 1);  -- seeding takes it alone (protocol B)
    rank := 0;

    -- An unlocked look: a refusal costs no lock and no write, and missing counters come to light.
    IF NOT sure THEN
        p_fresh := p_call ->> 'fresh';
        waiting := EXISTS (SELECT FROM token_allowance_ticket);
        used := array_fill(0::bigint, ARRAY[n]); reserved := used;
        FOR i IN 1 .. n LOOP
            SELECT c.used, c.reserved, c.since INTO u, h, s
            FROM token_allowance_counter c WHERE c.key = p_keys[i];
            IF NOT FOUND AND p_fresh[i] THEN
                missing := true;
            ELSIF NOT FOUND OR s < p_since[i] THEN
                seeds := seeds || i;
            END IF;
            IF p_slices[i] IS NOT NULL THEN
                SELECT sum(c.used), sum(c.reserved) INTO u, h FROM token_allowance_counter c
                WHERE c.part_of = p_keys[i] AND c.slice BETWEEN p_slices[i] - 62 AND p_slices[i] + 60;
            END IF;
            used[i] := coalesce(u, 0);
            reserved[i] := coalesce(h, 0);
            IF used[i] >= p_degrades[i] THEN
                reached := reached || i;
            END IF;
            CONTINUE WHEN NOT p_hard[i] OR p_needs[i] <= 0;
            IF waiting THEN
                SELECT count(*) INTO ahead FROM token_allowance_ticket t
                WHERE t.key = p_keys[i] AND t.until > clock_timestamp()
                    AND (p_ticket IS NULL OR t.number < p_number AND t.call <> p_ticket);
            END IF;
            IF ahead > 0 OR used[i] + reserved[i] + p_needs[i] > p_limits[i] THEN
                over := over || i;
                rank := greatest(rank, ahead);
                held := held AND used[i] + p_needs[i] <= p_limits[i] AND p_keys[i] NOT LIKE '0|%';
            END IF;
        END LOOP;
        IF cardinality(seeds) > 0 OR cardinality(reached) > 0 OR cardinality(over) > 0 THEN
            IF (SELECT coalesce(sum(number), 0) FROM token_allowance_policyversion) <> p_version THEN
                status := 'stale';
            ELSIF cardinality(seeds) > 0 THEN
                status := 'seed'; marks := seeds;
            ELSIF token_allowance_known_v1(p_row) THEN
                status := 'repeat';
            ELSIF cardinality(reached) > 0 THEN
                status := 'degrade'; marks := reached; rank := 0;
            ELSE
                status := 'refused'; marks := over;
                IF held AND p_ticket IS NOT NULL THEN
                    PERFORM token_allowance_join_v1(p_ticket, p_number, ARRAY(SELECT p_keys[m] FROM unnest(marks) AS m));
                END IF;
            END IF;
            RETURN;
        END IF;
    END IF;
    BEGIN
        IF missing THEN  -- before any row lock, in lock order
            INSERT INTO token_allowance_counter (key, used, reserved, since)
            SELECT w.key, 0, 0, w.since FROM unnest(p_keys, p_since) AS w(key, since)
            ON CONFLICT DO NOTHING;
        END IF;
        FOR i IN 1 .. n LOOP
            IF p_slices[i] IS NULL THEN
                UPDATE token_allowance_counter c SET reserved = c.reserved + p_needs[i]
                WHERE c.key = p_keys[i]
                RETURNING c.used, c.reserved - p_needs[i], c.since INTO u, h, s;
            ELSE
                SELECT c.since INTO s FROM token_allowance_counter c WHERE c.key = p_keys[i] FOR UPDATE;
            END IF;
            IF NOT FOUND OR s < p_since[i] THEN
                status := 'seed'; marks := ARRAY[i];
                RAISE EXCEPTION USING ERRCODE = 'TA001';
            END IF;
            IF p_slices[i] IS NOT NULL THEN
                SELECT t.used, t.reserved INTO u, h
                FROM token_allowance_hold_slice_v1(p_keys[i], p_slices[i], p_needs[i]) AS t;
            END IF;
            IF NOT sure THEN
                used[i] := u; reserved[i] := h;
            END IF;
            IF u >= p_degrades[i] THEN
                reached := reached || i;
            END IF;
            IF p_needs[i] > 0 AND u + h + p_needs[i] > p_limits[i] THEN
                IF p_hard[i] IS FALSE THEN
                    noted := true;
                ELSE
                    over := over || i;
                    held := held AND u + p_needs[i] <= p_limits[i] AND p_keys[i] NOT LIKE '0|%';
                END IF;
            END IF;
        END LOOP;
        SELECT coalesce(sum(number), 0), EXISTS (SELECT FROM token_allowance_ticket) INTO v, waiting
        FROM token_allowance_policyversion;
        IF v <> p_version THEN
            status := 'stale';
            RAISE EXCEPTION USING ERRCODE = 'TA001';
        ELSIF cardinality(reached) > 0 OR cardinality(over) > 0 OR sure AND waiting THEN
            status := CASE WHEN cardinality(reached) > 0 THEN 'degrade' ELSE 'refused' END;
            marks := CASE WHEN cardinality(reached) > 0 THEN reached ELSE over END;
            RAISE EXCEPTION USING ERRCODE = 'TA001';
        END IF;
        r := jsonb_populate_record(NULL::token_allowance_reservation, p_row);
        r.expires_at := clock_timestamp() + p_lease_ms * interval '1 ms';
        IF noted THEN
            r.flags := r.flags || '["would_refuse"]';
        END IF;
        INSERT INTO token_allowance_reservation VALUES (r.*);
        IF waiting AND p_ticket IS NOT NULL THEN
            DELETE FROM token_allowance_ticket WHERE id IN (
                SELECT t.id FROM token_allowance_ticket t WHERE t.call = p_ticket FOR UPDATE SKIP LOCKED);
        END IF;
        status := 'admitted'; used := NULL; reserved := NULL;
    EXCEPTION  -- the block's updates are undone
    WHEN SQLSTATE 'TA001' THEN
        IF status = 'stale' THEN
            NULL;
        ELSIF sure THEN
            SELECT t.status, t.marks, t.used, t.reserved, t.rank INTO status, marks, used, reserved, rank
            FROM token_allowance_reserve_v1(p_call - 'sure', p_row) AS t;
        ELSIF status IN ('refused', 'degrade') AND token_allowance_known_v1(p_row) THEN
            status := 'repeat';
        ELSIF status = 'refused' AND held AND p_ticket IS NOT NULL THEN
            PERFORM token_allowance_join_v1(p_ticket, p_number, ARRAY(SELECT p_keys[m] FROM unnest(marks) AS m));
        END IF;
    WHEN unique_violation THEN
        status := 'repeat';
    END;
END $fn$;

-- Settle or release: replace what reservation p_row.id holds by what was used.
--
-- p_actual {cost_micros, tokens, calls}; p_row says how it ended. If that is the whole ledger row, a
-- reservation the database never saw is charged all the same, once (protocol 11).
-- status: settled, released, late (it had expired, or was unknown), repeat, conflict,
--         unknown (nothing was done: it is not known, and p_row is not whole)
CREATE OR REPLACE FUNCTION token_allowance_settle_v1(p_actual bigint[], p_row jsonb, OUT status text)
LANGUAGE plpgsql VOLATILE AS $fn$
#variable_conflict use_column
DECLARE
    r token_allowance_reservation; x token_allowance_reservation; hold record; usual boolean;
    held boolean := true; charged boolean := false;
BEGIN
    PERFORM set_config('lock_timeout', '2000', true);
    x := jsonb_populate_record(NULL::token_allowance_reservation, p_row);
    UPDATE token_allowance_reservation t SET
        state = x.state, idempotency_key = CASE x.state WHEN 'released' THEN '' ELSE t.idempotency_key END,
        cost_micros = x.cost_micros, cost_exact = x.cost_exact,
        input_tokens = x.input_tokens, output_tokens = x.output_tokens,
        cache_read_tokens = x.cache_read_tokens, cache_write_tokens = x.cache_write_tokens,
        reasoning_tokens = x.reasoning_tokens, usage = x.usage, raw_usage = x.raw_usage,
        price = x.price, provider_request_id = x.provider_request_id, settled_at = x.settled_at
    WHERE t.id = x.id AND t.state = 'reserved'
    RETURNING t.holds INTO r.holds;
    usual := FOUND;
    IF usual THEN
        status := x.state;
    ELSE
        SELECT * INTO r FROM token_allowance_reservation t WHERE t.id = x.id FOR UPDATE;
        IF NOT FOUND THEN
            IF NOT p_row ? 'created_at' THEN
                status := 'unknown'; RETURN;
            END IF;
            PERFORM pg_advisory_xact_lock_shared(8313, 1);
            IF x.state = 'released' THEN  -- the next call with its key is reserved anew
                x.idempotency_key := '';
            END IF;
            INSERT INTO token_allowance_reservation VALUES (x.*) ON CONFLICT DO NOTHING;
            IF NOT FOUND THEN
                status := 'conflict'; RETURN;
            END IF;
            r := x; held := false; status := 'late';
        ELSIF r.state IN ('settled', 'released') OR r.state = x.state
                OR (r.state = 'expired' AND x.state = 'released' AND r.settled_at IS NULL) THEN
            IF x.state = 'released'
                OR (r.state = 'settled' AND r.input_tokens = x.input_tokens
                    AND r.output_tokens = x.output_tokens
                    AND r.cost_micros IS NOT DISTINCT FROM x.cost_micros) THEN
                status := 'repeat';
            ELSE
                status := 'conflict';
                UPDATE token_allowance_reservation t SET flags = t.flags || '["conflict"]'
                WHERE t.id = r.id AND NOT t.flags ? 'conflict';
            END IF;
            RETURN;
        ELSIF r.state = 'expired' THEN
            held := false; charged := r.settled_at IS NOT NULL; status := 'late';
        ELSE
            status := x.state;  -- reserved by a transaction that has just ended
        END IF;
    END IF;
    FOR hold IN
        SELECT h ->> 0 AS key, (h ->> 2)::bigint AS amount,
            CASE h ->> 1 WHEN 'cost' THEN p_actual[1] WHEN 'tokens' THEN p_actual[2] ELSE p_actual[3] END AS actual
        FROM jsonb_array_elements(r.holds) AS h ORDER BY (h ->> 0) COLLATE "C"
    LOOP
        UPDATE token_allowance_counter c SET
            used = c.used + hold.actual - CASE WHEN charged THEN hold.amount ELSE 0 END,
            reserved = c.reserved - CASE WHEN held THEN hold.amount ELSE 0 END
        WHERE c.key = hold.key;
        IF NOT FOUND AND NOT held AND NOT charged AND hold.key ~ '[|]-?[0-9]+$' THEN
            -- A slice that no reserve has opened, of a rolling budget that is counted.
            INSERT INTO token_allowance_counter AS c (key, used, reserved, since, part_of, slice)
            SELECT hold.key, hold.actual, 0, 0, w.key, substring(hold.key FROM '-?[0-9]+$')::bigint
            FROM token_allowance_counter w WHERE w.key = regexp_replace(hold.key, '-?[0-9]+$', '-')
            ON CONFLICT (key) DO UPDATE SET used = c.used + excluded.used;
        ELSIF NOT FOUND AND NOT held AND NOT charged THEN
            -- Not counted yet: a mark that the next reserve must seed it, and not begin at zero.
            INSERT INTO token_allowance_counter (key, used, reserved, since)
            VALUES (hold.key, 0, 0, -1) ON CONFLICT DO NOTHING;
        END IF;
    END LOOP;
    IF NOT usual THEN
        UPDATE token_allowance_reservation t SET
            state = x.state, idempotency_key = CASE x.state WHEN 'released' THEN '' ELSE t.idempotency_key END,
            cost_micros = x.cost_micros, cost_exact = x.cost_exact,
            input_tokens = x.input_tokens, output_tokens = x.output_tokens,
            cache_read_tokens = x.cache_read_tokens, cache_write_tokens = x.cache_write_tokens,
            reasoning_tokens = x.reasoning_tokens, usage = x.usage, raw_usage = x.raw_usage,
            price = x.price, provider_request_id = x.provider_request_id, settled_at = x.settled_at
        WHERE t.id = x.id;
    END IF;
    IF status = 'late' THEN
        x.flags := x.flags || '["late"]';
    END IF;
    IF x.flags <> '[]' THEN
        UPDATE token_allowance_reservation t SET
            flags = (SELECT jsonb_agg(DISTINCT f) FROM jsonb_array_elements(t.flags || x.flags) AS f)
        WHERE t.id = x.id;
    END IF;
END $fn$;

-- Extend: a longer lease and more held in each counter the reservation counts in, all or nothing; also
-- in those of limits made since, which the caller does not know. Where the window rolls, p_keys name
-- the slices of the reservation and p_wholes their budgets: each keeps its slice, and the amount holds
-- in every window that this slice lies in.
-- status: extended, refused (marks say by which), gone (the reservation is final)
CREATE OR REPLACE FUNCTION token_allowance_extend_v1(
    p_id uuid, p_keys text[], p_wholes text[], p_slices bigint[], p_limits bigint[], p_hard boolean[],
    p_lease_ms bigint,
    p_micros bigint, p_tokens bigint, p_calls bigint, p_deferred text,
    OUT status text, OUT marks int[], OUT used bigint[], OUT reserved bigint[])
LANGUAGE plpgsql VOLATILE AS $fn$
#variable_conflict use_column
DECLARE
    n int := cardinality(p_keys); u bigint; h bigint; hold record; r token_allowance_reservation;
BEGIN
    PERFORM set_config('lock_timeout', '2000', true);
    marks := '{}'; used := array_fill(0::bigint, ARRAY[n]); reserved := array_fill(0::bigint, ARRAY[n]);
    SELECT * INTO r FROM token_allowance_reservation t WHERE t.id = p_id AND t.state = 'reserved' FOR UPDATE;
    IF NOT FOUND THEN
        status := 'gone'; RETURN;
    END IF;
    r.holds := '[]';
    BEGIN
        FOR hold IN
            SELECT e ->> 0 AS key, e ->> 1 AS unit, (e ->> 2)::bigint AS amount, w.i::int AS i,
                CASE e ->> 1 WHEN 'cost' THEN p_micros WHEN 'tokens' THEN p_tokens ELSE p_calls END AS need
            FROM token_allowance_reservation t, jsonb_array_elements(t.holds) AS e
            LEFT JOIN unnest(p_keys) WITH ORDINALITY AS w(key, i) ON w.key = e ->> 0
            WHERE t.id = p_id ORDER BY (e ->> 0) COLLATE "C"
        LOOP
            r.holds := r.holds || jsonb_build_array(
                jsonb_build_array(hold.key, hold.unit, hold.amount + hold.need));
            IF p_wholes[hold.i] IS NOT NULL THEN
                PERFORM FROM token_allowance_counter c WHERE c.key = p_wholes[hold.i] FOR UPDATE;
            END IF;
            UPDATE token_allowance_counter c SET reserved = c.reserved + hold.need
            WHERE c.key = hold.key RETURNING c.used, c.reserved - hold.need INTO u, h;
            CONTINUE WHEN NOT FOUND OR hold.i IS NULL;
            IF p_wholes[hold.i] IS NOT NULL THEN
                SELECT sum(c.used), sum(c.reserved) - hold.need INTO u, h FROM token_allowance_counter c
                WHERE c.part_of = p_wholes[hold.i]
                    AND c.slice BETWEEN p_slices[hold.i] - 62 AND p_slices[hold.i] + 60;
            END IF;
            used[hold.i] := u; reserved[hold.i] := h;
            IF p_hard[hold.i] AND hold.need > 0 AND u + h + hold.need > p_limits[hold.i] THEN
                status := 'refused'; marks := ARRAY[hold.i];
                RAISE EXCEPTION USING ERRCODE = 'TA001';
            END IF;
        END LOOP;
        UPDATE token_allowance_reservation t SET
            expires_at = greatest(t.expires_at, clock_timestamp() + p_lease_ms * interval '1 ms'),
            deferred_id = coalesce(p_deferred, t.deferred_id),
            reserved_micros = t.reserved_micros + p_micros, reserved_tokens = t.reserved_tokens + p_tokens,
            holds = r.holds
        WHERE t.id = p_id;
        status := 'extended';
    EXCEPTION WHEN SQLSTATE 'TA001' THEN
        NULL;
    END;
END $fn$;

-- Expire: give back what reservations hold whose lease has run out; with p_charge charge it.
CREATE OR REPLACE FUNCTION token_allowance_expire_v1(p_most int, p_charge boolean, p_now timestamptz, OUT expired int)
LANGUAGE plpgsql VOLATILE AS $fn$
#variable_conflict use_column
DECLARE
    ids uuid[]; hold record;
BEGIN
    PERFORM set_config('lock_timeout', '2000', true);
    PERFORM token_allowance_sweep_v1();
    SELECT array_agg(due.id) INTO ids FROM (
        SELECT r.id FROM token_allowance_reservation r
        WHERE r.state = 'reserved' AND r.expires_at < clock_timestamp()
        ORDER BY r.expires_at LIMIT p_most FOR UPDATE SKIP LOCKED) AS due;
    expired := coalesce(cardinality(ids), 0);
    IF expired = 0 THEN
        RETURN;
    END IF;
    FOR hold IN
        SELECT h ->> 0 AS key, sum((h ->> 2)::bigint)::bigint AS amount
        FROM token_allowance_reservation r, jsonb_array_elements(r.holds) AS h
        WHERE r.id = ANY (ids) GROUP BY h ->> 0 ORDER BY (h ->> 0) COLLATE "C"
    LOOP
        UPDATE token_allowance_counter c SET
            reserved = c.reserved - hold.amount,
            used = c.used + CASE WHEN p_charge THEN hold.amount ELSE 0 END
        WHERE c.key = hold.key;
    END LOOP;
    UPDATE token_allowance_reservation r SET
        state = 'expired',
        flags = r.flags || CASE WHEN p_charge THEN '["estimated"]'::jsonb ELSE '[]'::jsonb END,
        cost_micros = CASE WHEN p_charge THEN r.reserved_micros END,
        cost_exact = CASE WHEN p_charge THEN r.reserved_micros END,
        input_tokens = CASE WHEN p_charge THEN r.reserved_tokens ELSE 0 END,
        settled_at = CASE WHEN p_charge THEN p_now END
    WHERE r.id = ANY (ids);
END $fn$;
