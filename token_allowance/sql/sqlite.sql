CREATE TRIGGER token_allowance_limit_insert AFTER INSERT ON token_allowance_limit BEGIN
    UPDATE token_allowance_limit SET tracked_since = {now} WHERE id = NEW.id;
END

CREATE TRIGGER token_allowance_limit_update AFTER UPDATE OF tenant, user, session, feature, model, plan,
    "window", rolling_seconds, anchor_day, time_zone, unit, is_active, expires_at ON token_allowance_limit
WHEN (NEW.is_active AND NOT OLD.is_active)
    OR (OLD.expires_at IS NOT NULL AND OLD.expires_at IS NOT NEW.expires_at)
    OR (OLD.tenant, OLD.user, OLD.session, OLD.feature, OLD.model, OLD.plan, OLD."window",
        OLD.rolling_seconds, OLD.anchor_day, OLD.time_zone, OLD.unit)
    IS NOT
       (NEW.tenant, NEW.user, NEW.session, NEW.feature, NEW.model, NEW.plan, NEW."window",
        NEW.rolling_seconds, NEW.anchor_day, NEW.time_zone, NEW.unit)
BEGIN
    UPDATE token_allowance_limit SET tracked_since = {now} WHERE id = NEW.id;
END

CREATE TRIGGER token_allowance_tenant_insert AFTER INSERT ON token_allowance_tenant BEGIN
    UPDATE token_allowance_tenant SET tracked_since = {now} WHERE id = NEW.id;
END

CREATE TRIGGER token_allowance_tenant_update AFTER UPDATE OF key, plan, time_zone ON token_allowance_tenant
WHEN (OLD.key, OLD.plan, OLD.time_zone) IS NOT (NEW.key, NEW.plan, NEW.time_zone)
BEGIN
    UPDATE token_allowance_tenant SET tracked_since = {now} WHERE id = NEW.id;
END

CREATE TRIGGER token_allowance_tenant_delete AFTER DELETE ON token_allowance_tenant BEGIN
    UPDATE token_allowance_limit SET tracked_since = {now} WHERE tenant IN ('*', OLD.key);
END

CREATE TRIGGER token_allowance_counter_lost AFTER DELETE ON token_allowance_counter
WHEN OLD.slice IS NULL
BEGIN
    UPDATE token_allowance_limit SET tracked_since = {now};
END
