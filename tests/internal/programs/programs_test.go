package programs

import (
	"os"
	"testing"
)

// The README has the table of what has run.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("../../../README.md")
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
	want, err := replace(string(readme), render(all))
	if err != nil {
		t.Fatal(err)
	}
	if want != string(readme) {
		t.Error("the README's table is not that of table.json")
	}
}

func TestRender(t *testing.T) {
	const want = `| program | package | options | over | result |
|---|---|---|---|---|
| ` + "`a` | p 1 | `-x`, `-y 3`, `-y` | rxe, shm | 1 of 3 failed |\n| `b` | p 1 |  | siw | passed |\n"
	got := render([]Run{
		{"a", "p 1", "-x", "shm", true}, {"a", "p 1", "-y 3 SERVER", "rxe", false}, {"a", "p 1", "-n 5 -y -F SERVER", "shm", true}, {"b", "p 1", "", "siw", true},
	})
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
