//go:build linux

package peer

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the page of Linux peers")

const reports = "../../../conformance/reports"

// TestPage: the page of Linux peers, LINUX.md, is what the table of kernels and the reports of
// softrnic conform say. -update writes it.
func TestPage(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# Linux's rxe and siw

What Linux's software devices do where they differ from the standards or from each other, by version of Linux. It is generated from
the table of kernels in tests/system/interop/peer and from the reports beside this page:

` + "```\ngo test ./tests/system/interop/peer -run '^TestPage$' -update\n```\n\n" +
		"A trait was seen on a machine of that version where a cell says yes. An empty cell says nothing. What libibverbs' manual pages\n" +
		"promise and rxe does not do is in [SUITES.md](../../system/dropin/SUITES.md#behaviour-that-the-manual-pages-specify).\n\n" +
		"SoftRNIC exchanges FLUSHes with rxe by `--rxe-flush` (in Go roce.Config.RxeFlush): it then sends and accepts the ICRC that rxe has.\n" +
		"It is the CRC of the standard, continued over the 32 bytes from the BTH on, as they are: rxe's table of opcodes has no offset of\n" +
		"the payload for FLUSH (rxe_opcode.c), and takes all of the packet for it (rxe_icrc.c). The answers have the ICRC of the standard.\n\n")
	fmt.Fprintf(&b, "| trait |%s\n|---|%s\n", columns(func(k Kernel) string { return fmt.Sprintf("%v, rdma-core %v", k.Linux, k.RDMACore) }),
		columns(func(Kernel) string { return "---" }))
	var traits []Trait
	for _, k := range kernels {
		for _, trait := range k.Traits {
			if !slices.Contains(traits, trait) {
				traits = append(traits, trait)
			}
		}
	}
	for _, trait := range traits {
		fmt.Fprintf(&b, "| %s |%s\n", trait, columns(func(k Kernel) string {
			if k.Has(trait) {
				return "yes"
			}
			return ""
		}))
	}
	explained := make(map[string]bool)
	for _, driver := range []string{"rxe", "siw"} {
		for _, id := range writeReports(t, &b, driver) {
			explained[id] = true
		}
	}
	for id := range differences {
		if !explained[id] {
			t.Errorf("%s does not differ between kernels, but there is a reason why it does", id)
		}
	}
	page := filepath.Join(reports, "LINUX.md")
	if *update {
		if err := os.WriteFile(page, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := os.ReadFile(page); err != nil || string(text) != b.String() {
		t.Errorf("%s is not what the table and the reports say (error: %v): run this test with -update", page, err)
	}
}

func columns(cell func(Kernel) string) string {
	var b strings.Builder
	for _, k := range kernels {
		b.WriteString(" " + cell(k) + " |")
	}
	return b.String()
}

// departure is a line of a report.
var departure = regexp.MustCompile(`(?m)^(FAIL|SKIP) ([A-Z0-9-]+): (.*)$`)

// writeReports writes the table of a driver's reports: cases that some kernel does not pass. It
// returns the IDs of those whose verdicts differ between kernels.
func writeReports(t *testing.T, b *strings.Builder, driver string) (differing []string) {
	t.Helper()
	type statement struct{ id, text string }
	type verdict struct {
		statement
		linux version
	}
	verdicts := make(map[verdict]string)
	tested := make(map[version]bool)
	var statements []statement
	fmt.Fprintf(b, "\n## %s\n\n", driver)
	for _, k := range kernels {
		text, err := os.ReadFile(filepath.Join(reports, fmt.Sprintf("%s-%v.txt", driver, k.Linux)))
		if errors.Is(err, fs.ErrNotExist) { // of a row that is new
			fmt.Fprintf(b, "- %s of Linux %v was not tested.\n", driver, k.Linux)
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		tested[k.Linux] = true
		head, _, _ := strings.Cut(string(text), ". It departs")
		fmt.Fprintf(b, "- %s\n", head)
		for _, m := range departure.FindAllStringSubmatch(string(text), -1) {
			s := statement{m[2], m[3]}
			verdicts[verdict{s, k.Linux}] = map[string]string{"FAIL": "no", "SKIP": "not tested"}[m[1]]
			if !slices.Contains(statements, s) {
				statements = append(statements, s)
			}
		}
	}
	fmt.Fprintf(b, "\n| statement |%s\n|---|%s\n", columns(func(k Kernel) string { return k.Linux.String() }),
		columns(func(Kernel) string { return "---" }))
	for _, s := range statements {
		fmt.Fprintf(b, "| %s: %s |%s\n", s.id, s.text, columns(func(k Kernel) string {
			if !tested[k.Linux] {
				return ""
			}
			return cmp.Or(verdicts[verdict{s, k.Linux}], "yes")
		}))
		different := make(map[string]bool)
		for linux := range tested {
			different[verdicts[verdict{s, linux}]] = true
		}
		if len(different) > 1 {
			differing = append(differing, s.id)
		}
	}
	b.WriteString("\nDifferences between the versions:\n\n")
	for _, id := range differing {
		if differences[id] == "" {
			t.Errorf("%s of %s differs between kernels, without a reason in the table of kernels", id, driver)
		}
		fmt.Fprintf(b, "- %s: %s\n", id, differences[id])
	}
	return differing
}
