SELECT o._value.cents, o.cents, `orders`.id, orders._key FROM orders o CROSS JOIN orders;
select ORDERS.Cents, _VALUE.ID from Orders;
SELECT `orders.created.v1`.id FROM `orders.created.v1`;
SELECT at.street.no, _value.at.city, _value._offset, _offset FROM places;
SELECT cents FROM `by-customer-repartition` WHERE _in_flight AND _decode_error IS NULL;
SELECT window_start_ms, window_end_ms FROM `per-minute`;
SELECT totals.orders FROM `store:totals` AS totals WHERE totals.orders > 1;
-- orders.created.v1 as a comment
SELECT * FROM orders /* and `another` */ ;
SELECT 'orders.created.v1 is text' AS x FROM orders;
SELECT *, o.*, _value.* FROM orders o;
SELECT * EXCEPT (_headers, cents) FROM orders;
SELECT n FROM (SELECT id, count(*) AS n FROM orders GROUP BY id) WHERE n > 1;
SELECT t.`count(1)` FROM (SELECT count(*) FROM orders) t;
WITH a AS (SELECT id FROM orders), b AS (SELECT id FROM a) SELECT b.id FROM b JOIN a USING
  (id);
WITH orders AS (SELECT id AS i FROM orders) SELECT i FROM orders;
WITH a(x, y) AS (SELECT id, cents FROM orders) SELECT x, y FROM a;
SELECT (SELECT max(_offset) FROM totals t WHERE t._key = o._key) AS newest FROM orders o;
SELECT * FROM orders o WHERE NOT EXISTS (SELECT 1 FROM totals t WHERE t._key = o.id);
SELECT * FROM orders WHERE (id, cents) IN (SELECT id, cents FROM `orders-rejected`);
SELECT o.id, n FROM orders o, LATERAL (SELECT count(*) AS n FROM totals t WHERE t._key = o.id);
SELECT coalesce(a._key, b._key) FROM orders a FULL OUTER JOIN totals b ON a._key <=> b._key;
SELECT a.id FROM orders a LEFT ANTI JOIN totals b ON a._key = b._key AND b.orders > a.cents;
SELECT id FROM orders a LEFT SEMI JOIN totals b ON a._key = b._key;
SELECT id FROM orders EXCEPT SELECT id FROM `orders-rejected` ORDER BY id;
(SELECT id FROM orders UNION ALL SELECT id FROM `orders.created.v1`) MINUS SELECT _key FROM
  totals;
SELECT id FROM orders INTERSECT SELECT _key FROM totals;
SELECT /*+ BROADCAST(t) */ o.id FROM orders o JOIN totals t ON t._key = o.customer;
SELECT h.key, i FROM orders LATERAL VIEW OUTER posexplode(_headers) hs AS i, h;
SELECT tag, count(*) FROM places LATERAL VIEW explode(tags) AS tag GROUP BY tag;
SELECT col FROM places LATERAL VIEW explode(tags) t;
SELECT explode(tags) AS tag FROM places;
SELECT pos, col FROM (SELECT posexplode(tags) FROM places);
SELECT stack(2, 'a', cents, 'b', 1L) AS (name, n) FROM orders;
SELECT key FROM (SELECT inline(_headers) FROM orders);
SELECT id, sum(cents) OVER w AS s FROM orders WINDOW w AS (PARTITION BY customer ORDER BY
  _offset);
SELECT * FROM (SELECT id, row_number() OVER (PARTITION BY _key ORDER BY _offset DESC) AS r
  FROM orders) WHERE r > 1;
SELECT max(cents) OVER (PARTITION BY _partition ORDER BY _offset ROWS BETWEEN UNBOUNDED
  PRECEDING AND 1 PRECEDING) FROM orders;
SELECT customer, count(*) FILTER (WHERE cents > 0) AS n FROM orders GROUP BY customer HAVING
  n > 1;
SELECT customer AS c, count(DISTINCT id) FROM orders GROUP BY c ORDER BY c;
SELECT customer, count(*) FROM orders GROUP BY ALL ORDER BY ALL;
SELECT customer, sum(cents) FROM orders GROUP BY ROLLUP (customer);
SELECT customer, grouping(customer) FROM orders GROUP BY customer WITH CUBE;
SELECT max_by(_value, _offset).cents, any_value(id), percentile_approx(cents, 0.5) FROM orders;
SELECT collect_list(struct(id AS i, cents))[0].i FROM orders;
SELECT transform(tags, t -> concat(t, at.city)), filter(tags, (t, i) -> i > _partition) FROM
  places;
SELECT aggregate(tags, 0L, (sum, t) -> sum + length(t) + _partition) FROM places;
SELECT exists(_headers, h -> h.key = 'x' AND h.value IS NOT NULL), size(_headers) FROM orders;
SELECT map_filter(map('a', cents), (k, v) -> v > _offset)['a'] FROM orders;
SELECT array_sort(tags, (l, r) -> CASE WHEN l < r THEN -1 ELSE 1 END) FROM places;
SELECT cents DIV 100, cents % 7, cents::string, CAST(rate AS DECIMAL(20, 2)), try_cast(id AS
  INT) FROM orders;
SELECT named_struct('a', id).a, map('k', 1)['k'], array(1, 2)[0], _headers[0].key FROM orders;
SELECT if(cents > 0, 'a', 'b'), CASE customer WHEN 'x' THEN 1 END, nvl(id, 'none') FROM orders;
SELECT * FROM orders WHERE id LIKE 'a%' AND id RLIKE '^a' AND id ILIKE ANY ('a%', 'b%');
SELECT * FROM orders WHERE cents BETWEEN 1 AND 5 AND id IS DISTINCT FROM customer;
SELECT current_date, current_timestamp(), timestampdiff(SECOND, _timestamp,
  current_timestamp), date_trunc('day', _timestamp), extract(HOUR FROM _timestamp),
  unix_millis(_timestamp) FROM orders;
SELECT _timestamp + INTERVAL 5 MINUTES, date'2026-01-01', timestamp'2026-01-01 00:00:00'
  FROM orders;
SELECT from_json(id, 'a INT').a, get_json_object(id, '$.a'), X'1F', 1L, 2.5BD, r'\d' FROM
  orders;
SELECT id AS i, i || 'x' AS j FROM orders;
SELECT id, user, session_user FROM orders;
SELECT * FROM (VALUES ('a', 1), ('b', 2)) AS v(name, n) JOIN orders o ON o._key = v.name;
SELECT r.id FROM range(5) r JOIN orders o ON o._partition = r.id;
SELECT * FROM (SELECT _partition, cents FROM orders) PIVOT (sum(cents) FOR _partition IN (0,
  1));
SELECT * FROM orders TABLESAMPLE (10 PERCENT) LIMIT 5 OFFSET 2;
SELECT id FROM orders SORT BY id;
FROM orders SELECT id WHERE cents > 0;
SELECT transform(_headers, h -> filter(tags, t -> t = h.key AND at.city = t)) FROM places;
SELECT id FROM orders WHERE id IN
  (SELECT id AS n FROM orders UNION ALL SELECT _key FROM totals ORDER BY n LIMIT 5);
