-- Checks the result of sort: the rows that are less than the one before them. (DuckDB reads a file in its order.)
SELECT l_order, l_line, l_price
FROM (SELECT *, LAG(l_price) OVER () AS before FROM sorted) AS pairs
WHERE before > l_price
