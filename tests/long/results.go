package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"
)

// line is a line of the plan.
type line struct {
	name    string
	limit   time.Duration
	command string
}

// readPlan reads lines of three fields: a name, a time limit, and a command, which is the rest of
// the line.
func readPlan(name string) (plan []line, err error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	for row := range strings.Lines(string(text)) {
		if row = strings.TrimSpace(row); row == "" || row[0] == '#' {
			continue
		}
		name, rest, _ := strings.Cut(row, " ")
		limit, command, _ := strings.Cut(rest, " ")
		l := line{name: name, command: command}
		if l.limit, err = time.ParseDuration(limit); err != nil || command == "" {
			return nil, fmt.Errorf("plan: %q is not a name, a time limit and a command", row)
		}
		plan = append(plan, l)
	}
	return plan, nil
}

const passed = "passed"

// result is a row of the table of results.
type result struct {
	commit, date     string
	seconds          int
	verdict, numbers string
}

const (
	resultsFile = directory + "/RESULTS.md"
	heading     = `# Results of the long run

` + "`.ci/run long`" + ` writes this table: for each line of [plan](plan) the last run, on which commit, and what it measured. A "+"
behind the commit stands for a tree with changes that were not committed.

| test | commit | date | seconds | verdict | numbers |
|---|---|---|---|---|---|
`
)

// readResults reads the table. A missing file is an empty table.
func readResults() (map[string]result, error) {
	results := make(map[string]result)
	text, err := os.ReadFile(resultsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return results, nil
	}
	if err != nil {
		return nil, err
	}
	for row := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(row), "|"), "|")
		if len(cells) != 6 {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if seconds, err := strconv.Atoi(cells[3]); err == nil { // the heading has none
			results[cells[0]] = result{cells[1], cells[2], seconds, cells[4], cells[5]}
		}
	}
	return results, nil
}

// writeResults writes the table in the order of the plan, without lines that have not run.
func writeResults(plan []line, results map[string]result) error {
	var b strings.Builder
	b.WriteString(heading)
	for _, l := range plan {
		if r, ok := results[l.name]; ok {
			fmt.Fprintf(&b, "| %s | %s | %s | %d | %s | %s |\n", l.name, r.commit, r.date, r.seconds, r.verdict,
				strings.ReplaceAll(r.numbers, "|", "/"))
		}
	}
	return os.WriteFile(resultsFile, []byte(b.String()), 0o644)
}
