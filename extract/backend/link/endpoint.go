package link

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"eaglebatch/extract/backend"
)

// Probing is how long a server may take to say how it is.
const Probing = 30 * time.Second

// Endpoint is one server.
type Endpoint struct {
	engine string
	url    *url.URL
	key    string
}

// Endpoints reads base URLs; key is sent with every request as a bearer token,
// and nowhere else. suffix is what people copy along with them.
func Endpoints(engine, key, suffix string, urls []string) ([]*Endpoint, error) {
	if len(urls) == 0 {
		return nil, fmt.Errorf("%s: no endpoints", engine)
	}
	var out []*Endpoint
	for _, e := range urls {
		u, err := url.Parse(strings.TrimRight(e, "/"))
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return nil, fmt.Errorf("%s: endpoint %q: want a URL such as http://host:8000", engine, e)
		}
		u.Path = strings.TrimSuffix(u.Path, suffix)
		if slices.ContainsFunc(out, func(x *Endpoint) bool { return x.url.String() == u.String() }) {
			return nil, fmt.Errorf("%s: endpoint %q is named twice", engine, e)
		}
		out = append(out, &Endpoint{engine, u, key})
	}
	return out, nil
}

// Name is an endpoint for people; a password in it is not shown.
func (e *Endpoint) Name() string { return e.url.Redacted() }

// Unavailable is an error about an endpoint, not about a sample. That the key is
// not the right one does not pass by itself. A server that is asked too much, or
// for what it does not have, says so, whatever the sample.
func (e *Endpoint) Unavailable(what string, err error) error {
	var se *StatusError
	code := 0
	if errors.As(err, &se) {
		code = se.Code
	}
	if code == http.StatusUnauthorized || code == http.StatusForbidden {
		return backend.NoBlame(fmt.Errorf("%s: %s: %s: %w: set extract.api_key_env or extract.api_key_file", e.engine, e.Name(), what, err))
	}
	err = fmt.Errorf("%s: %s: %s: %w: %w", e.engine, e.Name(), what, err, backend.ErrUnavailable)
	if code == http.StatusTooManyRequests || code == http.StatusNotFound || code == http.StatusMethodNotAllowed {
		return backend.NoBlame(err)
	}
	return err
}

// Call is one HTTP request.
type Call struct {
	Method string
	Path   string // and query
	// ID names the request. One that has an ID may be sent again on another
	// connection where a kept one turns out to be closed.
	ID   string
	Body []byte // JSON; nil: none
	Into any    // what the answer is decoded into; nil: it is not looked at
	Most int64  // bytes of an answer; 0: no bound
}

// Do makes a call. What is not answered with 200 is a StatusError.
func (e *Endpoint) Do(ctx context.Context, hc *Client, c Call) error {
	path, query, _ := strings.Cut(c.Path, "?")
	u := e.url.JoinPath(path)
	u.RawQuery = query
	rq, err := http.NewRequestWithContext(ctx, c.Method, u.String(), bytes.NewReader(c.Body))
	if err != nil {
		return err
	}
	if c.Body != nil {
		rq.Header.Set("Content-Type", "application/json")
	}
	if c.ID != "" {
		rq.Header.Set("X-Request-Id", c.ID)
		rq.Header.Set("Idempotency-Key", c.ID)
	}
	if e.key != "" {
		rq.Header.Set("Authorization", "Bearer "+e.key)
	}
	rs, err := hc.Do(rq)
	if err != nil {
		return err
	}
	defer rs.Body.Close()
	var body io.Reader = rs.Body
	if c.Most > 0 {
		body = io.LimitReader(body, c.Most)
	}
	text, err := io.ReadAll(body)
	switch {
	case rs.StatusCode != http.StatusOK:
		return newStatusError(rs, text)
	case err != nil:
		return err
	case c.Into == nil:
		return nil
	}
	if err := json.Unmarshal(text, c.Into); err != nil {
		return Again(fmt.Errorf("an answer that is no JSON, or of another kind: %w", err))
	}
	return nil
}

// StatusError is an answer that is not 200.
type StatusError struct {
	Code    int
	Message string
	after   time.Duration // Retry-After
}

func (e *StatusError) Error() string { return fmt.Sprintf("HTTP %d: %s", e.Code, e.Message) }

// Lasting reports whether the same request would be answered the same again.
func (e *StatusError) Lasting() bool {
	return e.Code >= 400 && e.Code < 500 && e.Code != http.StatusRequestTimeout && e.Code != http.StatusTooManyRequests
}

func newStatusError(rs *http.Response, text []byte) *StatusError {
	e := &StatusError{Code: rs.StatusCode, Message: strings.TrimSpace(string(text[:min(len(text), 300)]))}
	var m struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
		Message string `json:"message"`
	}
	if json.Unmarshal(text, &m) == nil && m.Error.Message+m.Message != "" {
		e.Message = m.Error.Message + m.Message
	}
	if e.Message == "" {
		e.Message = http.StatusText(rs.StatusCode)
	}
	if n, err := strconv.Atoi(rs.Header.Get("Retry-After")); err == nil && n > 0 {
		e.after = min(time.Duration(n)*time.Second, time.Minute)
	}
	return e
}

// Again marks an answer that came and is of no use: the same server is asked
// once more.
func Again(err error) error { return &againError{err} }

type againError struct{ error }

func (e *againError) Unwrap() error { return e.error }
