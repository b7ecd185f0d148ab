package programs

import (
	"os"
	"testing"
)

func TestPage(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	all, err := load(".")
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatal("there is no table")
	}
	want, err := Replace(string(text), "tests/system/internal/programs", render(all))
	if err != nil {
		t.Fatal(err)
	}
	if want != string(text) {
		t.Errorf("the table of %s is not that of table.json", page)
	}
}

func TestRender(t *testing.T) {
	const want = "| program | package | two processes of one machine | rxe | siw | result |\n" +
		"|---|---|---|---|---|---|\n" +
		"| `a` | p 1 | shared memory (RoCEv2, iWARP): `-x [-R]`<br>shared memory and sockets (RoCEv2): `-y` | `-y 3` |  | 1 of 8 " +
		"failed |\n" +
		"| `b` | p 1 |  |  | yes | passed |\n" +
		"| `c` | this repository | sockets (RoCEv2): no options, `-z` | `-t 1` with `x`, `y`, `z`<br>by `--sockets`: `-T s` |  | passed |\n"
	got := render([]Run{
		{"a", "p 1", "-x", "shared memory (RoCEv2)", true}, {"a", "p 1", "-x", "shared memory (iWARP)", true},
		{"a", "p 1", "-x -R -F SERVER", "shared memory (RoCEv2)", true}, {"a", "p 1", "-x -R", "shared memory (iWARP)", true},
		{"a", "p 1", "-y 3 SERVER", "rxe", false}, {"a", "p 1", "-n 5 -y -F SERVER", "shared memory (RoCEv2)", true},
		{"a", "p 1", "-n 7 -y", "sockets (RoCEv2)", true},
		{"a", "p 1", "-y", "sockets (RoCEv2)", true}, {"b", "p 1", "", "siw", true},
		{"c", "", "", "sockets (RoCEv2)", true}, {"c", "", "-z", "sockets (RoCEv2)", true},
		{"c", "", "-t 1 x", "rxe", true}, {"c", "", "-t 1 y", "rxe", true}, {"c", "", "-t 1 z", "rxe", true},
		{"c", "", "-T s", "rxe, by `--sockets`", true},
	})
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
