-- TPC-H query 3: three tables joined, many groups, the ten largest of them.
SELECT l_order, SUM(l_price * (1 - l_discount)) AS revenue, o_date
FROM customer
JOIN orders ON c_customer = o_customer
JOIN lineitem ON l_order = o_order
WHERE c_segment = 'building'
  AND o_date < CAST('2022-03-15' AS DATE)
  AND l_shipped > CAST('2022-03-15' AS DATE)
GROUP BY l_order, o_date
ORDER BY revenue DESC, l_order
LIMIT 10
