// Command long runs the tests that take hours, one line of tests/long/plan after the other:
//
//	go run ./tests/long           all lines
//	go run ./tests/long NAME…     these lines
//
// It writes RESULTS.md beside the plan: a row for each line with the commit, the verdict and the
// numbers of the last run. A line that has passed on this commit is skipped, so the same command
// resumes an interrupted run. The output of each line is in tests/long/NAME.log, which git ignores.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const directory = "tests/long"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "long:", err)
		os.Exit(1)
	}
}

func run(names []string) error {
	plan, err := readPlan(filepath.Join(directory, "plan"))
	if err != nil {
		return err
	}
	for _, name := range names {
		if !slices.ContainsFunc(plan, func(l line) bool { return l.name == name }) {
			return fmt.Errorf("the plan has no line %q", name)
		}
	}
	commit, err := currentCommit()
	if err != nil {
		return err
	}
	results, err := readResults()
	if err != nil {
		return err
	}
	var failed []string
	for _, l := range plan {
		switch r := results[l.name]; {
		case len(names) > 0 && !slices.Contains(names, l.name):
			continue
		case r.commit == commit && r.verdict == passed:
			fmt.Printf("%s: has passed on this commit\n", l.name)
			continue
		}
		r, err := l.run(commit)
		if err != nil {
			return err
		}
		if r.verdict != passed {
			failed = append(failed, l.name)
		}
		results[l.name] = r
		if err := writeResults(plan, results); err != nil {
			return err
		}
	}
	if failed != nil {
		return fmt.Errorf("failed: %s", strings.Join(failed, ", "))
	}
	return nil
}

// currentCommit returns the commit of the tree. "+" follows if the tree has changes other than
// results.
func currentCommit() (string, error) {
	git := func(args ...string) (string, error) {
		out, err := exec.Command("git", append(args, "--", ".", ":!"+resultsFile)...).Output()
		if err != nil {
			return "", fmt.Errorf("git %s: %w", args[0], err)
		}
		return strings.TrimSpace(string(out)), nil
	}
	commit, err := git("log", "-1", "--format=%h", "--abbrev=12")
	if err != nil {
		return "", err
	}
	changes, err := git("status", "--porcelain")
	if err == nil && changes != "" {
		commit += "+"
	}
	return commit, err
}

// numbers matches the lines of a log in which a test reports its measurements.
var numbers = regexp.MustCompile(`(?m)^\s+\w+\.go:\d+: result: (.*)$`)

// timedOut is the exit code of timeout(1) after a timeout.
const timedOut = 124

// run runs the line's command and returns its row.
func (l line) run(commit string) (result, error) {
	log, err := os.Create(filepath.Join(directory, l.name+".log"))
	if err != nil {
		return result{}, err
	}
	defer log.Close()
	fmt.Printf("\n== %s: %s\n", l.name, l.command)
	// timeout ends all processes of the command.
	cmd := exec.Command("timeout", "-k", "30", fmt.Sprint(l.limit.Seconds()), "bash", "-euo", "pipefail", "-c", l.command)
	cmd.Env = append(os.Environ(), "SOFTRNIC_LONG=1")
	cmd.Stdout = io.MultiWriter(os.Stdout, log)
	cmd.Stderr = cmd.Stdout
	begun := time.Now()
	err = cmd.Run()
	r := result{commit: commit, date: begun.UTC().Format("2006-01-02"), seconds: int(time.Since(begun).Seconds()), verdict: passed}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == timedOut:
		r.verdict = "took longer than " + l.limit.String()
	case errors.As(err, &exit):
		r.verdict = "FAILED"
	case err != nil:
		return r, err
	}
	text, err := os.ReadFile(log.Name())
	if err != nil {
		return r, err
	}
	var said []string
	for _, m := range numbers.FindAllStringSubmatch(string(text), -1) {
		said = append(said, m[1])
	}
	r.numbers = strings.Join(said, "; ")
	fmt.Printf("%s: %s in %d s\n", l.name, r.verdict, r.seconds)
	return r, nil
}
