package repeat

import (
	"slices"
	"strings"
	"testing"
)

func TestAdded(t *testing.T) {
	const report = module + "verbs/ulp/rsocket.TestA: 2 runs, 1 failures\n" +
		module + "verbs/ulp/rsocket.TestA/10.0.0.1:_x: 2 runs, 1 failures\n" +
		module + "stack/hub.TestB: 2 runs, 2 failures\n"
	const line = "TestA verbs/ulp/rsocket 0123abcd 2026-01-02"
	for _, c := range []struct{ name, list, adds, err string }{
		{name: "the first time", list: "# comment\n\nTestA stack/hub 01234567 2025-01-01\n", adds: line},
		{name: "the second time", list: "TestA verbs/ulp/rsocket 01234567 2025-01-01\n", err: "the first was at commit 01234567 on 2025-01-01"},
		{name: "after it was mended", list: "TestA verbs/ulp/rsocket 01234567 2025-01-01 89abcdef\n", adds: line},
		{name: "mended once, not twice", list: "TestA verbs/ulp/rsocket 01234567 2025-01-01 89abcdef\n" +
			"TestA verbs/ulp/rsocket 01234568 2025-01-02\n", err: "the first was at commit 01234568"},
	} {
		all, err := Parse(c.list)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		fresh, err := added(all, report, "0123abcd", "2026-01-02")
		var want []string
		if c.adds != "" {
			want = []string{c.adds}
		}
		var got []string
		for _, e := range fresh {
			got = append(got, e.String())
		}
		if !slices.Equal(got, want) || (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %q, %v; want %q, %q", c.name, got, err, want, c.err)
		}
	}
}

func TestParse(t *testing.T) {
	const a = "TestA stack/hub 01234567 2025-01-01"
	for list, ok := range map[string]bool{
		a: true, a + " 89abcdef\n" + a: true, a + " 89abcdef\n" + a + " 89abcdef": true, a + "\n" + a: false,
		"stack/hub TestA 01234567 2025-01-01": false, "TestA stack/hub 01234567": false, "TestA stack/hub master 2025-01-01": false,
		a + " mended": false, "TestA/sub stack/hub 01234567 2025-01-01": false,
	} {
		if all, err := Parse(list); (err == nil) != ok {
			t.Errorf("%q: %v, %v", list, all, err)
		}
	}
}
