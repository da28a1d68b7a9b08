-- Like TPC-H query 14: line items joined with parts, a group for each brand.
SELECT p_brand,
       SUM(CASE WHEN p_size >= 40 THEN l_price * (1 - l_discount) ELSE 0 END) AS large,
       SUM(l_price * (1 - l_discount)) AS revenue,
       COUNT(*) AS lines
FROM lineitem
JOIN part ON l_part = p_part
GROUP BY p_brand
ORDER BY p_brand
