package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	goTest   = regexp.MustCompile(`go test ((?:\./\S+ )+)-run ["']([^"']+)["']`)
	function = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
)

// TestPlanNames: the tests of each line exist. A line with a wrong name or package would run
// nothing, and pass.
func TestPlanNames(t *testing.T) {
	plan, err := readPlan("plan")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range plan {
		for _, m := range goTest.FindAllStringSubmatch(l.command, -1) {
			names := testsOf(t, strings.Fields(m[1]))
			end := m[2][len(strings.TrimRight(m[2], "$")):]
			for _, name := range strings.Split(strings.Trim(m[2], "^$()"), "|") {
				re, err := regexp.Compile("^(?:" + name + ")" + end)
				if err != nil {
					t.Fatalf("%s: %v", l.name, err)
				}
				if !slices.ContainsFunc(names, re.MatchString) {
					t.Errorf("%s: %shas no test %s", l.name, m[1], name)
				}
			}
		}
	}
}

// testsOf returns the names of the tests of packages.
func testsOf(t *testing.T, packages []string) (names []string) {
	t.Helper()
	for _, p := range packages {
		files, err := filepath.Glob(filepath.Join("../..", p, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range function.FindAllStringSubmatch(string(text), -1) {
				names = append(names, m[1])
			}
		}
	}
	return names
}
