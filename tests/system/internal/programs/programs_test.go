package programs

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestPage compares the page with the tables, and rewrites it if SOFTRNIC_TABLE is set.
func TestPage(t *testing.T) {
	all, err := load(".")
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatal("there is no table")
	}
	if os.Getenv("SOFTRNIC_TABLE") != "" {
		if err := writePage(".", all); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want, err := withTables(string(text), all)
	if err != nil {
		t.Fatal(err)
	}
	if want != string(text) {
		t.Errorf("the tables of %s are not those of table.json and known.go; SOFTRNIC_TABLE=1 writes them", page)
	}
}

func TestRender(t *testing.T) {
	const want = "| program | package | bookworm | trixie | sid | two processes of one machine | rxe | siw | result |\n" +
		"|---|---|---|---|---|---|---|---|---|\n" +
		"| `a` | p, q | 1 |  | 1:2.0 | shared memory (RoCEv2, iWARP): `-x [-R]`<br>shared memory and sockets (RoCEv2): `-y` | `-y 3` |  | " +
		"bookworm: 1 of 7 failed |\n" +
		"| `b` | p | 1 |  |  |  |  | yes | passed |\n" +
		"| `c` | this repository | yes |  |  | sockets (RoCEv2): no options, `-z` | `-t 1` with `x`, `y`, `z`<br>by `--sockets`: `-T s` |  | " +
		"passed |\n" +
		"| `d` | Project v26 | yes |  |  | sockets (RoCEv2) |  |  | passed |\n"
	const here = "bookworm"
	got := render([]Run{
		{here, "a", "p 1", "-x", "shared memory (RoCEv2)", true}, {here, "a", "p 1", "-x", "shared memory (iWARP)", true},
		{here, "a", "p 1", "-x -R -F SERVER", "shared memory (RoCEv2)", true}, {here, "a", "p 1", "-x -R", "shared memory (iWARP)", true},
		{here, "a", "p 1", "-y 3 SERVER", "rxe", false}, {here, "a", "p 1", "-n 5 -y -F SERVER", "shared memory (RoCEv2)", true},
		{here, "a", "p 1", "-n 7 -y", "sockets (RoCEv2)", true}, {"sid", "a", "q 1:2.0", "-y", "sockets (RoCEv2)", true},
		{here, "b", "p 1", "", "siw", true},
		{here, "c", "", "", "sockets (RoCEv2)", true}, {here, "c", "", "-z", "sockets (RoCEv2)", true},
		{here, "c", "", "-t 1 x", "rxe", true}, {here, "c", "", "-t 1 y", "rxe", true}, {here, "c", "", "-t 1 z", "rxe", true},
		{here, "c", "", "-T s", "rxe, by `--sockets`", true}, {here, "d", "Project v26", "", "sockets (RoCEv2)", true},
	})
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestUntried(t *testing.T) {
	const index = "Package: a\nVersion: 1\nDepends: libc6 (>= 2.38), libibverbs1 (>= 23~)\n\n" +
		"Package: b\nDepends: libibverbs10, xlibibverbs1, libibverbs\nDescription: for librdmacm1t64\n\n" +
		"Package: c\nPre-Depends: librdmacm1t64\nDepends: libibumad3\n\nPackage: d\nRecommends: x | libibmad5:any\n\n" +
		"Package: known\nDepends: libibverbs1\n"
	got, err := untried(strings.NewReader(index), []string{"known"})
	if want := []string{"a", "c", "d"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v (%v), want %v", got, err, want)
	}
}
