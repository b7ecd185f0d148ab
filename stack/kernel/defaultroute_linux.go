package kernel

import (
	"bufio"
	"cmp"
	"os"
	"slices"
	"strconv"
	"strings"
)

// defaultInterfaces returns the names of the interfaces of default routes: those of IPv4 first, for
// each version in the order of their metrics (proc(5), /proc/net/route and /proc/net/ipv6_route).
func defaultInterfaces() (names []string) {
	for _, table := range []struct {
		file                     string
		name, to, length, metric int // numbers of columns
		anywhere, everything     string
		flags                    int
	}{
		{"/proc/net/route", 0, 1, 7, 6, "00000000", "00000000", 3},
		{"/proc/net/ipv6_route", 9, 0, 1, 5, strings.Repeat("0", 32), "00", 8},
	} {
		type route struct {
			name   string
			metric uint64
		}
		var routes []route
		f, err := os.Open(table.file)
		if err != nil {
			continue // no IPv6
		}
		base := 10
		if table.flags == 8 {
			base = 16
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			columns := strings.Fields(lines.Text())
			if len(columns) <= max(table.name, table.length) || columns[table.to] != table.anywhere ||
				columns[table.length] != table.everything {
				continue
			}
			const up, reject = 0x1, 0x200
			flags, err := strconv.ParseUint(columns[table.flags], 16, 32)
			if err != nil || flags&(up|reject) != up {
				continue
			}
			if metric, err := strconv.ParseUint(columns[table.metric], base, 64); err == nil {
				routes = append(routes, route{columns[table.name], metric})
			}
		}
		_ = f.Close() // read-only file
		slices.SortStableFunc(routes, func(a, b route) int { return cmp.Compare(a.metric, b.metric) })
		for _, r := range routes {
			if !slices.Contains(names, r.name) {
				names = append(names, r.name)
			}
		}
	}
	return names
}
