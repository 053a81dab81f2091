/* asv's list colours every rise as a loss. This says of each change in words which it is, and swaps
   the colours where a benchmark is better the higher it is. */
"use strict";

document.addEventListener("DOMContentLoaded", function () {
    const list = document.getElementById("summarylist-body");

    function label(cell) {
        const rise = cell.classList.contains("positive-change");
        const name = $.asv.parse_hash_string(cell.parentNode.querySelector("a").hash).location[0];
        const gain = rise === Boolean($.asv.main_json.benchmarks[name].higher_is_better);
        cell.classList.toggle("positive-change", !gain);
        cell.classList.toggle("negative-change", gain);
        cell.dataset.direction = gain ? "improvement" : "regression";
        cell.append(" " + cell.dataset.direction);
    }

    new MutationObserver(function () {
        list.querySelectorAll(
            "td.positive-change:not([data-direction]), td.negative-change:not([data-direction])"
        ).forEach(label);
    }).observe(list, {childList: true, subtree: true});
});
