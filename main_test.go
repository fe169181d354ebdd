package main

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain makes the test binary serve as eaglebatch itself, for the scripts
// and for the drills that start and kill real processes.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"eaglebatch": main})
}

// TestScripts runs the command line scripts in fixtures/script.
func TestScripts(t *testing.T) {
	repo, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:           "fixtures/script",
		UpdateScripts: os.Getenv("UPDATE_SCRIPTS") != "",
		Setup: func(env *testscript.Env) error {
			env.Setenv("FIXTURES", filepath.Join(repo, "fixtures"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"code": checkCode},
	})
}

// checkCode runs a command and checks its exit code: code 4 eaglebatch run …
func checkCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N command …")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		got = exitCodeOf(err)
	}
	if got != want {
		ts.Fatalf("%v: exit code %d, want %d", args[1:], got, want)
	}
}

func exitCodeOf(err error) int {
	if e, ok := err.(interface{ ExitCode() int }); ok {
		return e.ExitCode()
	}
	return -1
}
