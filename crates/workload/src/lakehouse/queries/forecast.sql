-- TPC-H query 6: a filter that most rows fail, and one sum.
SELECT SUM(l_price * l_discount) AS revenue, COUNT(*) AS lines
FROM lineitem
WHERE l_shipped >= CAST('2021-01-01' AS DATE)
  AND l_shipped < CAST('2022-01-01' AS DATE)
  AND l_discount >= 0.045
  AND l_discount <= 0.075
  AND l_quantity < 24
